"""`hydrant compare wandb:...` gives the same result as the run folders. The real SDK logs and reads the runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from planted import write_run
from wandb_rows import Make, log_run_folder
from wandb_server import WandbServer

from hydrant import cli
from hydrant.errors import ConfigError
from hydrant.extensions.compare.run import Run
from hydrant.extensions.compare.sources import read_runs
from hydrant.extensions.wandb.tracker import SUMMARY_KEYS
from hydrant.files.on_disk import write_json
from hydrant.runs.folder import RunFolder
from hydrant.trackers import RunIdentity

FINALS = {("adamw", 0): 0.94, ("adamw", 1): 0.96, ("sgd", 0): 0.90, ("sgd", 1): 0.93, ("sgd", 2): None}

PRUNED = ("sgd", 1)


@pytest.fixture
def logged_runs(wandb_server: WandbServer, make_wandb: Make, workdir: Path) -> Path:
    """A folder with a few runs, of which one failed and one was pruned. W&B has the runs too."""
    for (optimizer, seed), final in FINALS.items():
        folder = workdir / "study" / f"{optimizer}-{seed}"
        lr = 1.0 if optimizer == "sgd" else 0.001
        overrides = {"optimizer": optimizer, "seed": seed, "optimizer.lr": lr}
        options = {"status": "failed", "error": "train/loss became NaN or infinite"} if final is None else {}
        write_run(folder, overrides, final, num_rows=4, **options)
        more = {"loss_of_batch": 4, "orthogonalized_in": "float32" if seed else "bfloat16"}
        if (optimizer, seed) == PRUNED:
            more |= {"pruned": True, "num_parameters": 10, "trial": {"number": 0, "objectives": []}}
        write_json(folder / "summary.json", RunFolder(folder).recorded | more)
        log_run_folder(folder, make_wandb)
    return workdir


def as_plain(run: Run) -> dict[str, Any]:
    """Return the data of a run that do not depend on its source."""
    series = {key: [s.updates.tolist(), [str(v) for v in s.values]] for key, s in run.series.items()}
    summary = {key: run.summary.get(key) for key in SUMMARY_KEYS}
    config = json.loads(json.dumps(run.config))
    return {
        "last_logged": run.last_logged,
        "config": config,
        "overrides": run.overrides,
        "state": run.state,
        "summary": summary,
        "series": series,
    }


def names(query: str) -> set[str]:
    return {run.name for run in read_runs([f"wandb:tester/study{query}"])}


@pytest.mark.slow
def test_wandb_and_the_folders_show_the_same(
    logged_runs: Path, wandb_server: WandbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    local = {run.name: as_plain(run) for run in read_runs(["study"])}
    remote = {run.name: as_plain(run) for run in read_runs(["wandb:tester/study"])}
    assert remote == local

    def as_json(word: str) -> dict[str, Any]:
        assert cli.main(["compare", word, "--json", "--details", "--target", "val/accuracy>=0.9"]) == 0
        return json.loads(capsys.readouterr().out)

    assert as_json("wandb:tester/study") == as_json("study")
    assert cli.main(["compare", "wandb:tester/study"]) == 0
    assert "Undecided: adamw optimizer.lr=0.001 leads " in capsys.readouterr().out

    mixed = ["study/adamw-0", "wandb:tester/study", "study/adamw-0"]
    assert cli.main(["compare", *mixed]) == 0
    printed = capsys.readouterr().out
    assert "5 runs: 3 finished, 1 pruned, 1 failed" in printed
    assert "! adamw-0: given as a folder and from W&B; only the folder is used" in printed
    assert {run.name for run in read_runs(mixed)} == set(local)

    assert names("?optimizer=sgd&seed=0,1") == {"sgd-0", "sgd-1"}
    assert names("?optimizer.lr=1e-3") == {"adamw-0", "adamw-1"}
    assert names("?state=failed") == {"sgd-2"}
    assert names("?group=study,other&tag=digits&job_type=classification&name=sgd-1") == {"sgd-1"}
    run_id = next(run.run_id for run in wandb_server.runs.values() if run.name == "adamw-1")
    assert names(f"/{run_id}") == names(f"/runs/{run_id}") == {"adamw-1"}


WRONG = {
    "wandb:tester": "'wandb:tester' names no project of W&B; write wandb:entity/project, wandb:entity/project/run or",
    "wandb:tester/nowhere": "'wandb:tester/nowhere': W&B cannot be read (Could not find project nowhere",
    "wandb:tester/study?group=other": "'wandb:tester/study?group=other': no such runs; leave out a part of the filter",
    "wandb:tester/study/absent": "'wandb:tester/study/absent': no such runs",
    "wandb:tester/study?optimzer=adamw": "unknown key 'optimzer'; did you mean 'optimizer'",
}


def test_a_word_that_matches_nothing_is_an_error(
    wandb_server: WandbServer, make_wandb: Make, identity: RunIdentity, capsys: pytest.CaptureFixture[str]
) -> None:
    make_wandb(identity, project="study").finish(0, {})
    for word, message in WRONG.items():
        assert cli.main(["compare", word]) == 2
        printed = capsys.readouterr().err
        assert f"error: RUNS: {message}" in printed
        assert len(printed.splitlines()) == 1


def test_the_error_names_a_failing_server(wandb_server: WandbServer) -> None:
    wandb_server.chaos("500")
    with pytest.raises(
        ConfigError,
        match=r"answered HTTP 500; check the name, log in with `wandb login`, or give run folders",
    ):
        read_runs(["wandb:tester/study"])


def test_without_a_key_the_error_names_the_remedy(wandb_home: Path) -> None:
    with pytest.raises(ConfigError, match=r"no API key \(neither WANDB_API_KEY nor .*give run folders"):
        read_runs(["wandb:tester/study"])


def test_rows_of_a_resumed_run_appear_once(
    wandb_server: WandbServer, make_wandb: Make, identity: RunIdentity
) -> None:
    """It logged up to update 40 and resumed from a checkpoint at 20."""
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
