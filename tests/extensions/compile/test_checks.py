"""The check that a compiled task computes what the eager one does: how it judges, and what it does without memory."""

from typing import Any

import pytest
import torch
from run_folders import assert_same_state, rows_without_compile, weights
from torch import Tensor
from training_runs import Train

from hydrant.extensions.compile.checks import difference

LOSS = torch.tensor(1.0)
GRADIENTS = {"large": torch.full((100,), 10.0), "small": torch.full((4,), 0.5), "zero": torch.zeros(3)}


def compare(tolerance: float, **changed: Tensor | None) -> str | None:
    """Compare GRADIENTS with others, of which some are changed or missing."""
    other = {name: g for name, g in {**GRADIENTS, **changed}.items() if g is not None}
    return difference((LOSS, GRADIENTS), (LOSS, other), tolerance, "a and b")


@pytest.mark.parametrize(
    "changed", [{}, {"small": GRADIENTS["small"] * 1.2}, {"large": GRADIENTS["large"] * 1.04}]
)
def test_the_rounding_of_single_gradients_is_no_difference(changed: dict[str, Tensor]) -> None:
    assert compare(0.05, **changed) is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"small": GRADIENTS["small"] * 1.3}, "small (by 0.3 of its norm)"),
        ({"small": GRADIENTS["small"] * float("nan")}, "small (by nan of its norm)"),
        ({"small": None}, "small (by 1 of its norm)"),
        ({"zero": torch.ones(3)}, "zero (by 17 of its norm)"),
        ({"new": torch.ones(3)}, "new"),
        # Each alone would pass, all together are too far away.
        ({name: g * 1.1 for name, g in GRADIENTS.items()}, "large (by 0.1 of its norm), small (by 0.1"),
    ],
)
def test_gradients_that_rounding_does_not_explain_differ(
    changed: dict[str, Tensor | None], message: str
) -> None:
    assert f"the gradients differ between a and b: {message}" in (compare(0.05, **changed) or "")


GREEDY = """
import torch
from torch import nn

class Greedy(nn.Module):
    "Fits into memory only if it is compiled, evaluated, or tried with two samples."
    def __init__(self, input_shape, num_classes, **_):
        super().__init__()
        self.linear = nn.Linear(64, num_classes)

    def forward(self, inputs):
        if self.training and len(inputs) > 2 and not torch.compiler.is_compiling():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4 GiB. GPU 0 is full.")
        return self.linear(inputs.flatten(1))
"""


@pytest.mark.slow
def test_a_run_that_fits_only_compiled_is_not_compared(train: Train, user_module: Any) -> None:
    user_module("greedy", GREEDY)
    words = ("tracker=local", "model._target_=greedy.Greedy", "allow_targets=[greedy]", "compile=dynamo",
             "duration=4", "log_every=1")  # fmt: skip
    checked, unchecked = train(*words, name="checked"), train(*words, "compile.check=false", name="unchecked")
    warning = (
        "compile.check: the eager task does not fit into memory, so nothing is compared (CUDA out of memory"
    )
    assert warning in (checked / "train.log").read_text()
    assert rows_without_compile(checked) == rows_without_compile(unchecked)
    assert_same_state(weights(checked), weights(unchecked))
