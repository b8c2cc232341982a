"""Ejected files train bit for bit what their configs train, for random combinations of options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from eject_files import write_files
from eject_options import all_pairs, pairs_of, random_cases
from ejected import check_equal, unchanged_process

__all__ = ["unchanged_process"]
pytestmark = pytest.mark.usefixtures("unchanged_process")


def check_cases(cases: Sequence[dict[str, str]], workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(workdir)
    for number, case in enumerate(cases):
        folder = workdir / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        check_equal(" ".join(case.values()), folder)
    covered = set[tuple[str, str]]().union(*map(pairs_of, cases))
    print(f"{len(cases)} configs cover {len(covered)} of {len(all_pairs())} pairs of options")


def test_programs_of_random_configs_train_the_same(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_cases(list(random_cases(3, seed=0)), workdir, monkeypatch)


@pytest.mark.slow
def test_programs_of_nearly_all_pairs_of_options_train_the_same(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = list(random_cases(350, seed=1))
    covered = set[tuple[str, str]]().union(*map(pairs_of, cases))
    assert len(covered) >= 0.9 * len(all_pairs())
    check_cases(cases, workdir, monkeypatch)
