"""How many calls of Python an update takes in which nothing is due: a budget, because each costs a small model time."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from training_runs import DIGITS, Train

import hydrant
from hydrant.training import loop

PACKAGE = str(Path(hydrant.__file__).parent)

BUDGET = {
    "training": 32,  # the loop 9, micro-batch, phases 5, stop, ranks, forward and backward 9, step 3, metrics 3, idle 2
    "schedules": 3,  # the frame, the curve, and its progress
    "optimizers": 9,  # lr is written 3, no average 1, the step 2, the fused kernel 3
    "data": 3,  # the stream, entered twice for its one batch, the batch's position
    "clock": 4,  # what is due, the size of the batch twice, its position
    "seeding": 3,  # of the micro-batch
    "tasks": 9,  # classification: checks 2, loss 2, measurements 3, around them 2
    "models": 1,
    "batch": 4,  # the loss twice and widened, and what is logged
    "runs": 2,  # whether to stop, and that an update was made
    "terminal": 1,  # the progress bar, which is not drawn
    "signals": 1,  # whether one came
}
"""The functions of Hydrant that an update of the small run calls, by package: 72."""

OF_TORCH = {
    "Module.__getattr__": 4,  # the model of the task, its layers, and no class weights
    "Module._wrapped_call_impl": 4,  # the task, the model, and its two parts
    "cross_entropy": 1,
    "Tensor.backward": 1,
    # Around the fused kernel.
    **dict.fromkeys(("no_grad.__init__", "no_grad.__enter__", "no_grad.__exit__"), 1),
}
"""Functions of torch that Hydrant calls, without those that they call, which differ from version to version."""


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="the budget is of a CPU, whose fused kernel is called directly"
)
def test_an_update_in_which_nothing_is_due_has_a_budget_of_calls(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, train_update, outer = list[tuple[CodeType, CodeType]](), loop.train_update, sys.getprofile()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_back is not None:
            calls.append((frame.f_code, frame.f_back.f_code))

    def recorded(trainer: Any, *, is_last: bool) -> None:
        if trainer.state.num_updates in (5, 6):  # from one update to the next, with what is between them
            sys.setprofile(note if trainer.state.num_updates == 5 else outer)
        train_update(trainer, is_last=is_last)

    monkeypatch.setattr(loop, "train_update", recorded)
    train(*DIGITS, "duration=8", "log_every=8", "eval_every=8", "save_every=8", "model.dropout=0")
    ours = [code for code, _ in calls if is_ours(code) and not is_part_of_another(code)]
    assert Counter(map(package_of, ours)) == BUDGET, names(ours)
    others = [code for code, caller in calls if is_ours(caller) and "/torch/" in code.co_filename]
    of_torch = Counter(code.co_qualname for code in others if code.co_name != "__new__")  # of no_grad
    assert of_torch == OF_TORCH, names(others)


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE)


def is_part_of_another(code: CodeType) -> bool:
    """Return whether it is a comprehension, which is a function before Python 3.12 only, or a generator expression."""
    return code.co_name in ("<listcomp>", "<dictcomp>", "<genexpr>")


def package_of(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(PACKAGE).parts[0].removesuffix(".py")


def names(codes: Sequence[CodeType]) -> str:
    """Return the functions, for the message of a failure."""
    return "\n".join(f"{Path(code.co_filename).stem}.{code.co_qualname}" for code in codes)
