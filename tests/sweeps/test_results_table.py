"""The lines that a sweep prints at its end."""

from pathlib import Path

import pytest

from hydrant.config.groups import REPETITIONS
from hydrant.records import RunProgress
from hydrant.runs.folder import choices_in
from hydrant.sweeps.results_table import MAX_PRINTED, best_run, closing_fields, differing_choices, print_runs


def ended(seed: int, value: float | None, state: str = "finished", message: str = "") -> RunProgress:
    return RunProgress(
        f"{seed}", f"s/{seed}", {"seed": f"{seed}", "model": "mlp"}, state, None, 9, 9,
        metric=None if value is None else "val/loss", best=value, best_num_updates=5, message=message,
    )  # fmt: skip


@pytest.mark.parametrize(("mode", "best"), [("min", range(18)), ("max", range(2000, 1982, -1))])
def test_of_many_runs_the_failed_and_the_best_are_printed(
    mode: str, best: range, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = [*best, 1000, 1001, 1002]  # best first, so the last three are neither
    runs = [ended(seed, seed / 100) for seed in seeds]
    runs.insert(7, ended(7777, 0.5, "failed", "loss became NaN"))
    runs.append(ended(9999, None, "not started"))
    print_runs("study", runs[::-1], MAX_PRINTED + 3, mode, " (status lists them)")
    first, _, *lines, last = capsys.readouterr().out.strip().splitlines()
    assert first.startswith("study: 23 runs: 21 finished, ")
    failed = lines.index("    loss became NaN")
    assert lines[failed - 1].split()[:2] == ["7777", "failed"]
    printed = [line.split()[0] for line in lines if line[0] != " "]
    assert sorted(printed) == sorted(["7777", *map(str, best)])
    assert len(lines) == MAX_PRINTED
    assert last == "and 3 finished, 1 not started (status lists them)"


def test_a_setting_has_all_of_its_repetitions() -> None:
    words = [
        [f"optimizer={name}", f"fold={n}", f"fold_seed={n}", f"seed={n}"] for name in "ab" for n in (0, 1)
    ]
    labels = differing_choices([choices_in(own) for own in words], REPETITIONS)
    assert labels == [{"optimizer": "a"}] * 2 + [{"optimizer": "b"}] * 2


@pytest.mark.extension
def test_the_end_of_a_sweep_names_its_best_run(tmp_path: Path) -> None:
    runs = [*(ended(seed, seed / 10) for seed in (3, 1, 2)), ended(4, 0.0, "failed", "loss became NaN")]
    (tmp_path / "sweep.png").touch()
    assert closing_fields(tmp_path, runs, 61.0, best_run(runs, "min")) == {
        "best value": "seed=1: val/loss 0.1000 at update 5",
        "duration": "1:01",
        "results": f"{tmp_path}/sweep.csv",
        "curves": f"{tmp_path}/sweep.png",
        "compare": f"hydrant compare {tmp_path}",
    }
    best = best_run(runs, "max")
    assert best is not None
    assert best.run == "3"
    few = [ended(1, None, "failed")]
    assert list(closing_fields(tmp_path / "none", few, 1.0, best_run(few, "min"))) == ["duration", "results"]
    close = [ended(seed, value) for seed, value in enumerate([0.9000003, 0.9000001, 0.9000002])]
    fields = closing_fields(tmp_path, close, 1.0, best_run(close, "min"))
    assert fields["best value"] == "seed=1: val/loss 0.90000010 at update 5"
