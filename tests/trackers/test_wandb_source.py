"""`hydrant compare wandb:...` gives what the run folders give: the real SDK logs the runs and reads them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import write_run

from hydrant import cli
from hydrant.compare.sources import Run, read_runs
from hydrant.config.plain import choices_of, flatten
from hydrant.errors import ConfigError
from hydrant.runs import config_of, options_of, overrides_of
from hydrant.trackers.base import RunIdentity
from hydrant.trackers.record import read_metrics, read_summary, write_json
from hydrant.trackers.wandb import TOLD

from .wandb_rows import Make
from .wandb_server import WandbServer

FINALS = {("adamw", 0): 0.94, ("adamw", 1): 0.96, ("sgd", 0): 0.90, ("sgd", 1): 0.93, ("sgd", 2): None}

PRUNED = ("sgd", 1)


@pytest.fixture
def both(wandb_server: WandbServer, make_wandb: Make, workdir: Path) -> Path:
    """The folder of a few runs, one of which failed and one was pruned, that W&B has too."""
    for (optimizer, seed), final in FINALS.items():
        folder = workdir / "study" / f"{optimizer}-{seed}"
        overrides = {
            "optimizer": optimizer,
            "seed": seed,
            "optimizer.lr": 1.0 if optimizer == "sgd" else 0.001,
        }
        lost = {"status": "failed", "error": "train/loss became NaN or infinite"} if final is None else {}
        write_run(folder, overrides, final, num_rows=4, **lost)
        if (optimizer, seed) == PRUNED:
            told = {"pruned": True, "num_parameters": 10, "trial": {"number": 0, "objectives": []}}
            write_json(folder / "summary.json", read_summary(folder) | told)
        upload(folder, make_wandb)
    return workdir


def upload(folder: Path, make_wandb: Make) -> None:
    """Log what a folder holds as its run does."""
    config = flatten(config_of(folder)) | choices_of(options_of(folder)) | {"overrides": overrides_of(folder)}
    identity = RunIdentity(folder, folder.name, "study", "classification", ("digits",), config)
    tracker = make_wandb(identity, project="study")
    for row in read_metrics(folder):
        tracker.log({key: np.nan if value is None else value for key, value in row.items()})
    summary = read_summary(folder)
    tracker.finish({"finished": 0, "failed": 1, "preempted": 143}[summary["status"]], summary)
    write_json(folder / "summary.json", summary | {"wandb": tracker.describe()})


def as_plain(run: Run) -> dict[str, Any]:
    """Everything of a run but where it was read."""
    series = {key: [own.updates.tolist(), [str(v) for v in own.values]] for key, own in run.series.items()}
    summary = {key: run.summary.get(key) for key in TOLD}
    config = json.loads(json.dumps(run.config))
    return {
        "logged": run.logged,
        "config": config,
        "given": run.given,
        "state": run.state,
        "summary": summary,
        "series": series,
    }


def names(query: str) -> set[str]:
    return {run.name for run in read_runs([f"wandb:tester/study{query}"])}


def test_wandb_and_the_folders_show_the_same(
    both: Path, wandb_server: WandbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    local = {run.name: as_plain(run) for run in read_runs(["study"])}
    remote = {run.name: as_plain(run) for run in read_runs(["wandb:tester/study"])}
    assert remote == local

    def told(word: str) -> dict[str, Any]:
        assert cli.main(["compare", word, "--json", "--target", "val/accuracy>=0.9"]) == 0
        return json.loads(capsys.readouterr().out)

    assert told("wandb:tester/study") == told("study")
    assert cli.main(["compare", "wandb:tester/study"]) == 0
    assert "best: optimizer=adamw optimizer.lr=0.001, val/accuracy 0.95" in capsys.readouterr().out

    mixed = ["study/adamw-0", "wandb:tester/study", "study/adamw-0"]
    assert cli.main(["compare", *mixed]) == 0
    printed = capsys.readouterr().out
    assert "5 runs: 3 finished, 1 pruned, 1 failed" in printed
    assert "! adamw-0: given as folders and in W&B; each counts once, as its folder says" in printed
    assert {run.name for run in read_runs(mixed)} == set(local)

    assert names("?optimizer=sgd&seed=0,1") == {"sgd-0", "sgd-1"}
    assert names("?optimizer.lr=1e-3") == {"adamw-0", "adamw-1"}
    assert names("?state=failed") == {"sgd-2"}
    assert names("?group=study,other&tag=digits&job_type=classification&name=sgd-1") == {"sgd-1"}
    run_id = next(run.run_id for run in wandb_server.runs.values() if run.name == "adamw-1")
    assert names(f"/{run_id}") == names(f"/runs/{run_id}") == {"adamw-1"}


WRONG = {
    "wandb:tester": "write wandb:entity/project, wandb:entity/project/run or",
    "wandb:tester/nowhere": "W&B has no project tester/nowhere that this account may see",
    "wandb:tester/study?group": "'group' gives no value; write ?group=lr_study",
    "wandb:tester/study?group=other": "no such runs; leave out a part of the filter",
    "wandb:tester/study/absent": "no such runs",
    "wandb:tester/study?optimzer=adamw": "unknown key 'optimzer'; did you mean 'optimizer'",
}


def test_what_is_not_there_is_said(
    wandb_server: WandbServer, make_wandb: Make, identity: RunIdentity, capsys: pytest.CaptureFixture[str]
) -> None:
    make_wandb(identity, project="study").finish(0, {})
    for word, told in WRONG.items():
        assert cli.main(["compare", word]) == 2
        printed = capsys.readouterr().err
        assert f"error: RUNS: {word!r}: {told}" in printed
        assert len(printed.splitlines()) == 1


def test_a_server_that_fails_is_named(wandb_server: WandbServer) -> None:
    wandb_server.chaos("500")
    with pytest.raises(
        ConfigError, match=r"answered HTTP 500; log in with `wandb login`, or give run folders"
    ):
        read_runs(["wandb:tester/study"])


def test_without_a_key_the_remedy_is_told(wandb_home: Path) -> None:
    with pytest.raises(ConfigError, match=r"no API key \(neither WANDB_API_KEY nor .*give run folders"):
        read_runs(["wandb:tester/study"])


def test_rows_of_a_resumed_run_are_there_once(
    wandb_server: WandbServer, make_wandb: Make, identity: RunIdentity
) -> None:
    """It logged up to 40, and went on from a checkpoint at 20."""
    for updates, value in (((10, 20, 30, 40), 1.0), ((30, 40, 50), 2.0)):
        tracker = make_wandb(identity, project="study")
        for n in updates:
            row = {"num_updates": n, "epoch": n / 10, "time": 1e9 + n, "compile/graphs": 1.0}
            tracker.log(row | {"train/loss": value})
            tracker.log(row | {"val/loss": value})
        tracker.finish(143, {"status": "preempted"})
    (run,) = read_runs(["wandb:tester/study"])
    for metric in ("train/loss", "val/loss"):
        assert run.series[metric].updates.tolist() == [10, 20, 30, 40, 50]
        assert run.series[metric].values.tolist() == [1, 1, 2, 2, 2]
    assert run.state == "preempted"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of wandb-workspaces, when it is imported
def test_the_comparison_is_saved_in_wandb(
    wandb_server: WandbServer, make_wandb: Make, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What W&B draws of it is its own; here it takes the workspace and the report as wandb-workspaces sends them."""
    for optimizer, final in {"adamw": 0.94, "sgd": 0.90}.items():
        upload(
            write_run(workdir / "study" / optimizer, {"optimizer": optimizer}, final, num_rows=3), make_wandb
        )
    write_run(workdir / "study" / "lion", {"optimizer": "lion"}, 0.80, num_rows=3)
    assert cli.main(["compare", "study", "--wandb"]) == 0
    printed = capsys.readouterr()
    assert f"W&B workspace: {wandb_server.url}/tester/study?nw=" in printed.err
    assert f"W&B report: {wandb_server.url}/tester/study/reports/val-accuracy-by-optimizer--" in printed.err
    assert "1 of the 3 runs are not in W&B" in printed.err

    workspace, report = wandb_server.views
    ids = sorted(run.run_id for run in wandb_server.runs.values())
    assert workspace["displayName"] == report["displayName"] == "val accuracy by optimizer"
    texts = [json.dumps(view["spec"]) for view in (workspace, report)]
    for text in texts:
        assert all(run_id in text for run_id in ids)
        assert "optimizer.value" in text
        assert '"val/accuracy"' in text
        assert '"num_updates"' in text
        assert "config:optimizer.value" in text, "an axis of the parallel coordinates"
    assert "best: optimizer=adamw, val/accuracy 0.94" in texts[1]


def test_what_a_saved_comparison_needs_is_told(
    wandb_home: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(workdir / "run", {}, 0.9)
    assert cli.main(["compare", "run", "--wandb"]) == 2
    told = capsys.readouterr()
    assert "the workspace and the report both need a login: `wandb login`" in told.err
    assert told.out == "", "nothing is compared before that"


def test_runs_that_are_not_in_wandb_are_told(
    wandb_server: WandbServer, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(workdir / "run", {}, 0.9)
    assert cli.main(["compare", "run", "--wandb"]) == 2
    assert "--wandb: none of the runs is in W&B; `hydrant sync` sends those" in capsys.readouterr().err
