"""The table of a sweep in the terminal: it fits."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from run_states import sweep_in_all_states

from hydrant.sweeps.plan import sweep_progress
from hydrant.sweeps.results_table import render_table


@pytest.mark.parametrize(("width", "height"), [(40, 24), (60, 7), (80, 5), (200, 4), (20, 3)])
def test_a_table_fits_its_terminal(tmp_path: Path, width: int, height: int) -> None:
    runs = sweep_progress(sweep_in_all_states(tmp_path))
    lines = render_table("multirun/study", runs, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    if len(lines) < len(runs):
        num_hidden = sum(map(int, re.findall(r"\d+", lines[-1])))
        # The others say why a run failed.
        num_shown = sum(not line.startswith("    ") for line in lines[2:-1])
        assert num_hidden == len(runs) - num_shown or lines[-1].endswith("…")
    assert width < 40 or any("running elsewhere"[: width - 30] in line for line in lines)


def test_results_that_differ_in_late_digits_are_shown_apart(tmp_path: Path) -> None:
    one = replace(sweep_progress(sweep_in_all_states(tmp_path))[0], best_num_updates=5)
    lines = render_table("study", [replace(one, best=value) for value in (0.9000003, 0.9000001)], 100)
    assert all(text in line for text, line in zip(("0.90000030", "0.90000010"), lines[2:], strict=True))


def test_losses_of_any_size_are_plain_numbers(tmp_path: Path) -> None:
    one = replace(sweep_progress(sweep_in_all_states(tmp_path))[0], state="running", best=None)
    lines = render_table("study", [replace(one, loss=loss) for loss in (0.5, 1234.25, 1234567.5)], 100)
    assert [
        text in line.split() for text, line in zip(("0.5000", "1234", "1234568"), lines[2:], strict=True)
    ] == [True] * 3


@pytest.mark.parametrize("height", [None, 10])
def test_reasons_are_below_their_runs(tmp_path: Path, height: int | None) -> None:
    runs = sweep_progress(sweep_in_all_states(tmp_path))
    runs += [replace(runs[0], state="finished")] * 40
    why = "train/loss became NaN; lower optimizer.lr or lengthen scheduler.warmup"
    runs.append(replace(runs[0], state="failed", message=why))
    lines = render_table("multirun/study", runs, 60, height, rest=" (--all lists them)")
    below = lines.index("    train/loss became NaN; lower optimizer.lr or lengthen")
    assert lines[below + 1] == "    scheduler.warmup"
    assert "failed" in lines[below - 1]
    assert height is None or len(lines) <= height
    assert lines[-1].endswith(" (--all lists them)") == (height is not None)
