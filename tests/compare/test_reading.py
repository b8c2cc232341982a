"""Which runs a command line names, in which keys they differ, and what is told before any result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import ENVIRONMENT, write_run

from hydrant.compare.comparison import Comparison
from hydrant.compare.curves import curves, extremes
from hydrant.compare.keys import differing_keys
from hydrant.compare.sources import read_runs

Compare = Callable[..., Comparison]


def names(*words: Path | str) -> list[str]:
    return [run.name for run in read_runs([str(word) for word in words])]


def told(comparison: Comparison) -> str:
    return "\n".join(warned.text for warned in comparison.warnings)


def on(**changed: Any) -> dict[str, Any]:
    """Options of a run in another environment."""
    return {"environment": ENVIRONMENT | changed}


def test_a_sweep_a_glob_and_a_folder_name_the_same_runs(planted: Path) -> None:
    assert len(names(planted)) == 20
    assert len(names(f"{planted}/*")) == 19, "without the sweep's own record, nothing tells what is missing"
    assert len(names(f"{planted}/*seed-0")) == 4
    assert names(planted / "optimizer-lion_scheduler-wsd_seed-0") == ["optimizer-lion_scheduler-wsd_seed-0"]
    assert len(names(planted, f"{planted}/*", planted)) == 20, "each once"
    assert len(names(planted.parent)) == 20, "sweeps are found below a folder"


def test_hidden_folders_are_not_searched(tmp_path: Path) -> None:
    write_run(tmp_path / "a", {}, 0.9)
    write_run(tmp_path / ".trash" / "b", {}, 0.9)
    assert names(tmp_path) == ["a"]


def test_a_baseline_may_write_its_number_otherwise(tmp_path: Path, comparing: Compare) -> None:
    for lr in (0.001, 0.01):
        write_run(tmp_path / f"{lr}", {"optimizer.lr": lr}, 0.9 + lr)
    baseline = comparing(tmp_path, baseline="optimizer.lr=1e-3").baseline
    assert baseline is not None
    assert baseline.name == "optimizer.lr=0.001"


def test_jobs_that_were_never_started_are_missing(planted: Path) -> None:
    runs = {run.name: run for run in read_runs([str(planted)])}
    missing = [run for run in runs.values() if run.state == "missing"]
    assert [(run.config["optimizer"], run.config["scheduler"], run.config["seed"]) for run in missing] == [
        ("sgd", "cosine", 4)
    ]


def test_names_tell_runs_of_different_sweeps_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "one" / "seed-0", {"seed": 0}, 0.9)
    write_run(tmp_path / "other" / "seed-0", {"seed": 0}, 0.9)
    assert names("one", "other") == ["one/seed-0", "other/seed-0"]


def test_keys_that_differ_without_those_that_another_explains(tmp_path: Path) -> None:
    for n, (optimizer, lr, root) in enumerate([("adamw", 0.1, "a"), ("sgd", 0.1, "b"), ("sgd", 0.2, "c")]):
        write_run(tmp_path / f"{n}", {"optimizer": optimizer, "optimizer.lr": lr, "data.root": root}, 0.9)
    runs = read_runs([str(tmp_path)])
    assert len({run.config["optimizer._target_"] for run in runs}) == 2
    assert differing_keys(runs) == ["optimizer", "optimizer.lr"]
    assert differing_keys(runs[:1]) == []
    newer = replace(runs[2], config=runs[2].config | {"scheduler.warmup": 5})  # the code has another default
    assert differing_keys([*runs, newer]) == ["optimizer", "optimizer.lr", "scheduler.warmup"]


@pytest.mark.parametrize(
    ("overrides", "options", "expected"),
    [
        ({}, on(git_commit="c" * 40), "the code commit differs: aaaaaaaaaa (...); cccccccccc (odd)"),
        ({}, on(git_dirty=True), "uncommitted changes in odd: the commit is not what ran"),
        ({}, on(torch="2.11.0"), "the torch version differs: 2.15.0 (...); 2.11.0 (odd)"),
        ({}, on(world_size=2), "the number of ranks differs: 1 (...); 2 (odd)"),
        ({}, on(gpu="H200"), "the device differs: CPU (...); H200 (odd)"),
        ({"data.num_classes": 5}, {}, "the data differs: data.num_classes=10 (...); data.num_classes=5 (odd)"),
        ({"data": "cifar10"}, {}, "the data differs: data=digits (...); data=cifar10 (odd)"),
        ({"global_batch_size": 32}, {}, "the budget differs: 6,400 samples (...); 3,200 samples (odd)"),
        ({"global_batch_size": 32}, {"total_updates": 200}, ""),
        ({"data.root": "elsewhere"}, {}, ""),
        ({"optimizer": "sgd"}, {}, ""),
        ({}, {"status": "running"}, "killed: odd; counted in no mean"),
        ({}, {"status": "preempted"}, "preempted: odd; counted in no mean"),
        ({}, {"values": [0.1, None]}, "finished whose last val/accuracy is not finite: odd; counted in no mean"),
    ],
)  # fmt: skip
def test_what_is_not_comparable_is_named(
    overrides: Mapping[str, Any],
    options: Mapping[str, Any],
    expected: str,
    tmp_path: Path,
    comparing: Compare,
) -> None:
    for seed in range(3):
        write_run(tmp_path / f"seed-{seed}", {"seed": seed}, 0.9)
    write_run(tmp_path / "odd", {"seed": 3, **overrides}, 0.9, **options)
    assert told(comparing(tmp_path)).replace("3 of 4 runs", "...") == expected


def test_a_job_counts_once(tmp_path: Path, comparing: Compare) -> None:
    """Seed 0 is there three times: the newest one that is finished is the second."""
    for number, seed in enumerate([0, 0, 0, 1]):
        others = {"status": "failed", "error": "killed"} if number == 2 else {}
        folder = write_run(
            tmp_path / f"{number}", {"seed": seed, "data.root": f"{number}"}, 0.9 + number / 100, **others
        )
        rows = [
            json.loads(line) | {"time": number}
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    comparison = comparing(tmp_path)
    assert [run.state for run in comparison.runs] == ["repeat", "finished", "repeat", "finished"]
    assert told(comparison) == (
        "the same job, seed included, is there more than once: 0 repeats 1; 2 repeats 1; "
        "only the newest finished run of a job counts"
    )
    (group,) = comparison.groups
    assert (group.estimate.num, group.num_runs, group.shortfall) == (2, 2, "")
    assert group.results == {"0": 0.91, "1": 0.93}
    assert [run.error for run in comparison.runs][2] == "the same job as 1, which counts; killed"


def test_seeds_that_other_groups_have_are_missing(tmp_path: Path, comparing: Compare) -> None:
    for optimizer, seeds in {"adamw": 3, "sgd": 3, "lion": 2}.items():
        for seed in range(seeds):
            write_run(
                tmp_path / f"{optimizer}-{seed}", {"optimizer": optimizer, "seed": seed}, 0.9 + seed / 100
            )
    comparison = comparing(tmp_path)
    assert [(group.estimate.num, group.num_runs) for group in comparison.groups] == [(3, 3), (2, 3), (3, 3)]
    assert told(comparison) == "no run was made of seed 2 of optimizer=lion"


def test_cells_without_any_run_are_missing(planted: Path, comparing: Compare, tmp_path: Path) -> None:
    comparison = comparing(planted)
    assert comparison.num_cells == 6
    assert comparison.missing == [
        {"optimizer": "lion", "scheduler": "cosine"},
        {"optimizer": "sgd", "scheduler": "wsd"},
    ]
    for n in range(5):
        write_run(tmp_path / f"{n}", {"optimizer.lr": 0.1 * n, "scheduler.warmup": n}, 0.9)
    assert comparing(tmp_path).missing == [], "a search at random is no grid"


def test_groups_that_mix_keys_say_so(planted: Path, comparing: Compare) -> None:
    comparison = comparing(planted, by=["optimizer"])
    assert "a group holds runs of different scheduler; the spread is not of the seeds alone" in told(
        comparison
    )
    versus = [group.versus for group in comparison.groups if group.versus is not None]
    assert [found.num_pairs for found in versus] == [3, 4], "paired by scheduler and seed"


def test_folders_that_are_not_whole_runs(tmp_path: Path, comparing: Compare) -> None:
    write_run(tmp_path / "whole", {"seed": 0}, 0.9)
    (tmp_path / "begun" / ".hydra").mkdir(parents=True)
    (tmp_path / "begun" / ".hydra" / "overrides.yaml").write_text("- seed=1\n")
    torn = write_run(tmp_path / "torn", {"seed": 2}, 0.9)
    with (torn / "metrics.jsonl").open("a") as file:
        file.write('{"num_updates": 101, "val/acc')
    states = {run.name: run.state for run in comparing(tmp_path).runs}
    assert states == {"whole": "finished", "begun": "not started", "torn": "finished"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("metrics.jsonl", b"nonsense\n"),
        ("metrics.jsonl", b'{"val/accuracy": 0.5}\n'),
        ("metrics.jsonl", b'{"num_updates": 1, "x": "\xff"}\n'),
        ("summary.json", b"[]"),
        ("config.yaml", b"seed\n"),
        (".hydra/overrides.yaml", b"- 'seed"),
        (".hydra/hydra.yaml", b"hydra:\n  runtime:"),
    ],
)
def test_a_damaged_file_costs_its_run_alone(
    file: str, text: bytes, tmp_path: Path, comparing: Compare
) -> None:
    write_run(tmp_path / "whole", {"seed": 0}, 0.9)
    (write_run(tmp_path / "odd", {"seed": 3}, 0.9) / file).write_bytes(text)
    runs = {run.name: run for run in comparing(tmp_path).runs}
    assert {name: run.state for name, run in runs.items()} == {"whole": "finished", "odd": "damaged"}
    assert f"{file} is damaged" in runs["odd"].error


def test_a_damaged_plan_costs_what_is_missing_alone(
    planted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Path(shutil.copytree(planted, tmp_path / "sweep"))
    (sweep / "sweep.json").write_text("{")
    assert len(names(sweep)) == 19
    assert "sweep.json is damaged" in capsys.readouterr().err


def test_seconds_are_those_of_training(tmp_path: Path) -> None:
    """A pause between two processes, or a slow evaluation, is in `time` but not in the pace."""
    folder = write_run(tmp_path / "run", {}, 0.9, num_rows=3, updates_per_second=25.0)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[2]["time"] += 3600
    rows[2]["perf/updates_per_second"] = 50.0
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (run,) = read_runs([str(folder)])
    assert run.seconds(np.array([0.0, 25.0, 50.0, 100.0])).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_what_is_no_number_costs_its_run_alone(tmp_path: Path, comparing: Compare) -> None:
    write_run(tmp_path / "whole", {"seed": 0}, 0.9)
    for name, file, text in [
        ("text", "metrics.jsonl", '{"num_updates": 1, "val/accuracy": "high"}\n'),
        ("plan", "schedule.json", "[]"),
        ("plan-of-text", "schedule.json", '{"updates": [0], "values": {"lr": ["high"]}}'),
    ]:
        (write_run(tmp_path / name, {"seed": name}, 0.9) / file).write_text(text)
    runs = {run.name: run for run in comparing(tmp_path).runs}
    assert [name for name, run in runs.items() if run.state == "damaged"] == ["plan", "plan-of-text", "text"]
    assert runs["plan"].error.endswith("; remove it")
    assert "val/accuracy has a value that is no number" in runs["text"].error


def test_thinned_curves_keep_their_extremes() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    picked = extremes(values, 200)
    assert len(picked) <= 202
    assert {0, len(values) - 1, int(values.argmin()), int(values.argmax())} <= set(picked)
    assert extremes(values[:200], 200) == list(range(200))
    values[5] = np.nan
    assert np.isfinite(values[extremes(values, 200)]).all()


def test_mean_curves_are_over_runs_with_a_result(planted: Path, comparing: Compare) -> None:
    comparison = comparing(planted)
    found = curves(comparison)
    place = next(n for n, g in enumerate(comparison.groups) if g.labels["optimizer"] == "lion")
    own = [run for run in comparison.groups[place].runs if run.state == "finished"]
    curve = found["groups"]["val/accuracy"][place]
    assert curve["n"] == len(own) == 3
    assert curve["v"] == pytest.approx(
        np.mean([r.series["val/accuracy"].values for r in own], axis=0), rel=1e-5
    )
    assert curve["low"][-1] == pytest.approx(comparison.groups[place].estimate.low, rel=1e-5)
    assert curve["s"][-1] == 1.0
