"""The warnings before the results."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from planted import ENVIRONMENT, Compare, warning_texts, write_run


def environment(**changes: Any) -> dict[str, Any]:
    """Return options for a run in another environment."""
    return {"environment": ENVIRONMENT | changes}


@pytest.mark.parametrize(
    ("overrides", "options", "expected"),
    [
        ({}, environment(git_commit="c" * 40), "the code commit differs: aaaaaaaaaa (...); cccccccccc (odd)"),
        ({}, environment(git_dirty=True), "uncommitted changes in odd: the code differs from the commit"),
        ({}, environment(torch="2.11.0"), "the torch version differs: 2.15.0 (...); 2.11.0 (odd)"),
        ({}, environment(world_size=2), "the number of ranks differs: 1 (...); 2 (odd)"),
        ({}, environment(gpu="H200"), "the device differs: CPU (...); H200 (odd)"),
        ({"data.num_classes": 5}, {}, "the data differs: data.num_classes=10 (...); data.num_classes=5 (odd)"),
        ({"data": "cifar10"}, {}, "the data differs: data=digits (...); data=cifar10 (odd)"),
        ({"global_batch_size": 32}, {}, "the budget differs: 6,400 samples (...); 3,200 samples (odd)"),
        ({"global_batch_size": 32}, {"total_updates": 200}, ""),
        ({"data.root": "elsewhere"}, {}, ""),
        ({"task.loss": "mae"}, {}, ""),  # the accuracy is the same quantity
        ({}, {"data_files": {"train": "aaaaaaa1", "val": "bbbbbbb2"}},
         "the data differs: content of data.val bbbbbbb1 (...); content of data.val bbbbbbb2 (odd)"),
        ({"data.val": "other.csv"}, {"data_files": {"train": "aaaaaaa1", "val": "bbbbbbb2"}},
         "the data differs: data.val=- (...); data.val=other.csv (odd)"),
        ({"optimizer": "sgd"}, {}, ""),
        ({}, {"end_reason": "val/accuracy >= 0.9"},
         "a hook has ended odd after 100 updates (val/accuracy >= 0.9): the results are those of this moment; "
         "--target compares when runs reach a value"),
        ({"folds": None, "fold_seed": 0, "limit_test_samples": None}, {}, ""),  # the others are of an earlier version
        ({}, {"status": "running"}, "killed: odd; not included in any mean"),
        ({}, {"status": "preempted"}, "preempted: odd; not included in any mean"),
        ({}, {"values": [0.1, None]},
         "finished, but its last val/accuracy is not finite: odd; not included in any mean"),
    ],
)  # fmt: skip
def test_differences_that_make_runs_incomparable_are_named(
    overrides: Mapping[str, Any],
    options: Mapping[str, Any],
    expected: str,
    tmp_path: Path,
    comparing: Compare,
) -> None:
    for seed in range(3):
        write_run(
            tmp_path / f"seed-{seed}",
            {"seed": seed},
            0.9,
            data_files={"train": "aaaaaaa1", "val": "bbbbbbb1"},
        )
    write_run(tmp_path / "odd", {"seed": 3, **overrides}, 0.9, **options)
    assert warning_texts(comparing(f"{tmp_path}/*")).replace("3 of 4 runs", "...") == expected


def test_only_one_run_of_a_job_counts(tmp_path: Path, comparing: Compare) -> None:
    """Seed 0 has three runs. The newest finished one is the second."""
    for number, seed in enumerate([0, 0, 0, 1]):
        options = {"status": "failed", "error": "killed"} if number == 2 else {}
        folder = write_run(
            tmp_path / f"{number}", {"seed": seed, "data.root": f"{number}"}, 0.9 + number / 100, **options
        )
        rows = [
            json.loads(line) | {"time": number}
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    comparison = comparing(tmp_path)
    assert [run.state for run in comparison.runs] == ["repeat", "finished", "repeat", "finished"]
    assert warning_texts(comparison) == (
        "several runs of the same job with the same seed: 0 repeats 1; 2 repeats 1; "
        "only the newest finished run of a job counts"
    )
    (group,) = comparison.groups
    assert (group.estimate.num, group.num_runs, group.shortfall) == (2, 2, "")
    assert group.results == {"0": 0.91, "1": 0.93}
    assert [run.error for run in comparison.runs][2] == "the same job as 1, which counts; killed"
