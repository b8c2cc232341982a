"""Run the program of a config in this process."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor

from hydrant import cli
from hydrant.commands.eject.assemble import assemble
from hydrant.commands.eject.cutting import cut
from hydrant.commands.eject.refusals import check_possible
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import NonFiniteError
from hydrant.interface import process
from hydrant.training.loop import train as train_loop
from hydrant.training.plan import Plan
from hydrant.training.prepare.build import prepare
from hydrant.training.prepare.scratch import scratch_trainer
from hydrant.training.trainer import RunLogger

TINY = (
    "tracker=local", "duration=7", "log_every=3", "eval_every=2", "save_every=3", "global_batch_size=32",
    "limit_train_samples=100", "limit_val_samples=50", "name=ejected",
)  # fmt: skip


@pytest.fixture
def unchanged_process() -> Generator[None]:
    """Restore what an ejected program sets in its process."""
    with process.unchanged_process():
        yield


@pytest.fixture
def project(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A project as `hydrant init` writes it, which is the working folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(workdir / "config"))  # else the project stays trusted
    assert cli.main(["init", "mine"]) == 0
    monkeypatch.chdir(workdir / "mine")
    monkeypatch.syspath_prepend(str(workdir / "mine"))
    yield workdir / "mine"
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


def run_program(text: str, **names: Any) -> None:
    """Run a program in this process, in the working folder, with torch's settings as in a new one."""
    inductor.fallback_random = False
    torch.compiler.set_stance("default")
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)
    cudnn: Any = torch.backends.cudnn
    cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = True, False, False
    with contextlib.redirect_stdout(None):
        exec(compile(text, "<ejected>", "exec"), {"__name__": "__main__", **names})


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run without those numbers that are times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith("perf/")} for row in rows]


class Rows(RunLogger):
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
        with trainer.optimizers.eval_weights():
            return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def check_equal(words: str, folder: Path) -> str:
    """Check that the program of a config gives the rows and the weights of its run; return it."""
    text, weights = trained(words, folder / "reference")
    if weights is None:  # the program fails at the same update
        with pytest.raises(ArithmeticError):
            run_program(text)
    else:
        run_program(text)
    check_folder(words, folder, weights)
    return text


def trained(words: str, folder: Path) -> tuple[str, Mapping[str, torch.Tensor] | None]:
    """Train a config; return its program, and the weights, or None if the run fails."""
    config = check(compose([*TINY, *words.split()]))
    check_possible(config)
    plan = prepare(config)
    text = assemble(cut(plan, "outputs/ejected"), "A program.")
    try:
        return text, train_here(plan, folder)
    except (NonFiniteError, ZeroDivisionError):  # LBFGS divides
        return text, None


def check_folder(words: str, folder: Path, weights: Mapping[str, torch.Tensor] | None) -> None:
    """Check the rows and the weights that a program has left, against those of its run."""
    rows, reference = rows_of(folder / "outputs" / "ejected"), rows_of(folder / "reference")
    assert rows == reference, f"{words}: {difference_of_rows(rows, reference)}"
    if weights is None:
        return
    ejected = torch.load(folder / "outputs" / "ejected" / "last.pt", weights_only=True)["model"]
    assert ejected.keys() == weights.keys()
    apart = {
        name: relative_distance(ejected[name], value)
        for name, value in weights.items()
        if not torch.equal(ejected[name], value)
    }
    assert apart == {}, f"{words}: the weights of the program and of the run differ"


def difference_of_rows(rows: Sequence[Mapping[str, Any]], reference: Sequence[Mapping[str, Any]]) -> str:
    """Return the first number that differs, and the largest relative difference of each key."""
    if [row.keys() for row in rows] != [row.keys() for row in reference]:
        return "the rows of the program have other keys than those of the run"
    pairs = [(at, key, row[key], reference[at][key]) for at, row in enumerate(rows) for key in row]
    apart = [pair for pair in pairs if pair[2] != pair[3]]
    at, key, value, expected = apart[0]
    largest = dict[str, float]()
    for _, name, one, other in apart:
        largest[name] = max(largest.get(name, 0.0), relative_distance(_number(one), _number(other)))
    return f"{key} of row {at} is {value!r}, and {expected!r} in the run; largest relative differences: {largest}"


def relative_distance(value: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference, relative to that of what is expected."""
    value, expected = value.double(), expected.double()
    return float((value - expected).norm() / expected.norm())


def _number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)
