"""Train in a child process, interrupt a run in this process, and continue it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from repository import ROOT

from hydrant import seeding
from hydrant.training import loop
from hydrant.training.trainer import Plan, Trainer

Train = Callable[..., Path]
"""The fixture `train`."""
UserModule = Callable[[str, str], None]
"""The fixture `user_module`."""

DIGITS = ("tracker=local", "data=digits", "model.hidden=[16]", "global_batch_size=32", "eval_every=4",
          "save_every=4")  # fmt: skip
"""Overrides of a small run."""


def command(*arguments: str) -> list[str]:
    """Return the command line of `python train.py ...`."""
    return [sys.executable, str(ROOT / "train.py"), *arguments]


def run_command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python train.py ...` in a child process to its end, with these variables added to the environment."""
    return subprocess.run(
        command(*arguments), cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


def train_in_child(workdir: Path, name: str, *words: str) -> Path:
    """Train in a child process, which must succeed; return the run folder."""
    done = run_command(f"name={name}", *words, cwd=workdir)
    assert done.returncode == 0, done.stderr
    return workdir / "outputs" / name


def seeded_batches(plan: Plan) -> Iterator[tuple[Any, Any]]:
    """Yield inputs and targets of each update of a run; what is drawn after each are the random numbers of the run."""
    stream = plan.data.train.stream(plan.spec)
    for n in range(plan.clock.total_updates):
        (batch,) = stream.micro_batches(n)
        seeding.seed_micro_step(plan.spec.seed, n, 0, torch.device("cpu"))
        yield batch.inputs, batch.targets


def interrupt_at(
    patch: pytest.MonkeyPatch, num_updates: int, times: int = 1, signum: int = signal.SIGINT
) -> None:
    """Let every run in this process receive a signal while it makes update `num_updates`."""
    make_update = loop.make_update

    def interrupted(trainer: Trainer, *, measure: bool) -> Any:
        if trainer.state.num_updates + 1 == num_updates:
            for _ in range(times):
                signal.raise_signal(signum)
        return make_update(trainer, measure=measure)

    patch.setattr(loop, "make_update", interrupted)


def whole_and_resumed(
    train: Train, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], stop_at: int
) -> tuple[Path, Path]:
    """Train without a stop, and again with a Ctrl-C in update `stop_at` and a second start; return both folders."""
    whole = train(*words, name="whole")
    with monkeypatch.context() as patch:
        interrupt_at(patch, stop_at)
        train(*words, name="half", status=130)
    return whole, train(*words, name="half")
