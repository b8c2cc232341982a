"""Ejected files train bit for bit what their configs train, for random combinations of options."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from eject_options import all_pairs, pairs_of, random_cases
from ejected import TINY, rows_of, run_program, unchanged_process

from hydrant.commands.eject.assemble import assemble
from hydrant.commands.eject.cutting import cut
from hydrant.commands.eject.refusals import check_possible
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.training.build import prepare
from hydrant.training.loop import train as train_loop
from hydrant.training.plan import Plan
from hydrant.training.scratch import scratch_trainer
from hydrant.training.trainer import NullRunLogger

__all__ = ["unchanged_process"]
pytestmark = pytest.mark.usefixtures("unchanged_process")


class Rows(NullRunLogger):
    """Writes rows as runs do."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "metrics.jsonl"

    def log(self, row: Mapping[str, float]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(dict(row)) + "\n")


def train_here(plan: Plan, folder: Path) -> Mapping[str, torch.Tensor]:
    """Train with the loop of Hydrant; return the weights."""
    folder.mkdir()
    with scratch_trainer(plan) as trainer:
        trainer.logger = Rows(folder)
        train_loop(trainer)
        return trainer.model.state_dict()


def check_equal(case: Mapping[str, str], folder: Path) -> None:
    """Check that the program of a config gives the rows and the weights of its run."""
    config = check(compose([*TINY, *" ".join(case.values()).split()]))
    check_possible(config)
    plan = prepare(config)
    text = assemble(cut(plan, "outputs/ejected"), "A program.")
    weights = train_here(plan, folder / "reference")
    run_program(text)
    assert rows_of(folder / "outputs" / "ejected") == rows_of(folder / "reference"), case
    ejected = torch.load(folder / "outputs" / "ejected" / "last.pt", weights_only=True)["model"]
    assert ejected.keys() == weights.keys()
    assert all(torch.equal(ejected[name], value) for name, value in weights.items()), case


def check_cases(cases: Sequence[Mapping[str, str]], workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, case in enumerate(cases):
        folder = workdir / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        check_equal(case, folder)
    covered = set[tuple[str, str]]().union(*map(pairs_of, cases))
    print(f"{len(cases)} configs cover {len(covered)} of {len(all_pairs())} pairs of options")


def test_programs_of_random_configs_train_the_same(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_cases(list(random_cases(20, seed=0)), workdir, monkeypatch)


@pytest.mark.slow
def test_programs_of_nearly_all_pairs_of_options_train_the_same(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = list(random_cases(200, seed=1))
    covered = set[tuple[str, str]]().union(*map(pairs_of, cases))
    assert len(covered) >= 0.9 * len(all_pairs())
    check_cases(cases, workdir, monkeypatch)
