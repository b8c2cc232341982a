"""FLOPs are counted as the model trains."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from training_runs import Train, UserModule

from hydrant import cli, seeding
from hydrant.batch import Batch, Outcome
from hydrant.training.costs import count_flops
from hydrant.training.prepare.rehearsal import rehearsal

BATCH, LENGTH, WIDTH, HIDDEN = 2, 5, 8, 16
MATRIX, ATTENTION = 2 * WIDTH * WIDTH, 2 * 2 * LENGTH * LENGTH * WIDTH
"""FLOPs of a product of one token with a matrix, and of the two products of attention."""

LAYER = LENGTH * (4 * MATRIX + 2 * 2 * WIDTH * HIDDEN) + ATTENTION


class Call(nn.Module):
    """A task that calls its model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Outcome:
        loss = self.model(batch.inputs).mean()
        return Outcome({"loss": loss}, {}, None, torch.tensor(batch.num_samples))


def count(model: nn.Module, *shape: int) -> tuple[int, str]:
    task = Call(model)
    with rehearsal(task):
        return count_flops(Batch(torch.randn(BATCH, *shape), torch.zeros(BATCH)), task)[0][:2]


class Frozen(nn.Module):
    """Calls a frozen part for inference, as a distillation calls its teacher."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part.requires_grad_(False)

    @torch.no_grad()
    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.part.eval()(inputs)
        return output


def encoder_layer(**settings: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, HIDDEN, batch_first=True, **settings)


@pytest.mark.parametrize(
    ("model", "shape", "flops"),
    [
        (lambda: nn.Linear(WIDTH, 3), (WIDTH,), 2 * WIDTH * 3),
        (lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 6, 7), 2 * 6 * 7 * 4 * 3 * 9),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (3, 3, 3), 2 * 4 * 3 * 9),
        (encoder_layer, (LENGTH, WIDTH), LAYER),
        (lambda: encoder_layer(dropout=0.0).eval(), (LENGTH, WIDTH), LAYER),
        (lambda: Frozen(encoder_layer()), (LENGTH, WIDTH), LAYER),
        (lambda: nn.TransformerEncoder(encoder_layer(), 3), (LENGTH, WIDTH), 3 * LAYER),
    ],
    ids=["linear", "convolution", "batch_norm", "layer", "evaluated", "frozen", "encoder"],
)
def test_the_count_is_that_by_hand(
    model: Callable[[], nn.Module], shape: tuple[int, ...], flops: int
) -> None:
    assert count(model(), *shape) == (flops, "")


@pytest.mark.parametrize(("kind", "num_gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_are_counted(kind: Any, num_gates: int) -> None:
    class Last(kind):  # type: ignore[misc]
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs)[0]

    model = Last(WIDTH, HIDDEN, num_layers=2, batch_first=True)
    per_token = 2 * num_gates * HIDDEN * (WIDTH + HIDDEN + HIDDEN + HIDDEN)
    assert count(model, LENGTH, WIDTH) == (LENGTH * per_token, "")


def test_a_count_that_fails_is_missing() -> None:
    class Unwatched(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            if _get_current_dispatch_mode() is not None:
                raise ValueError("watched")
            return super().forward(inputs)

    assert count(Unwatched(WIDTH, 2), WIDTH) == (
        0,
        "flops_per_sample is 0: torch cannot count them (ValueError: watched)",
    )


def test_counting_changes_nothing() -> None:
    class Drawing(nn.Sequential):
        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = super().forward(inputs)
            return output * random.random() * np.random.random()

    norm, frozen = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH)
    model = Drawing(nn.Linear(WIDTH, WIDTH), norm, nn.Dropout(0.5), frozen)
    frozen.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    host, torch_state = seeding.host_state(), torch.get_rng_state()
    assert count(model, WIDTH) == (MATRIX, "")
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert seeding.is_host_state(host)
    assert norm.training
    assert not frozen.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.backends.mha.get_fastpath_enabled()


def test_buffers_that_training_makes_or_replaces_are_as_before() -> None:
    class Centered(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.register_buffer("center", None)
            self.register_buffer("last", torch.zeros(1))

        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                self.center = inputs.mean(0)
                self.last = inputs
                self.register_buffer("added", inputs)
            return super().forward(inputs)

    model = Centered()
    assert count(model, WIDTH) == (MATRIX, "")
    assert model.center is None
    assert {name: value.tolist() for name, value in model.named_buffers()} == {"last": [0.0]}


def test_a_run_and_its_preview_tell_that_the_count_failed(
    train: Train,
    user_module: UserModule,
    logged_warnings: Callable[[], list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    user_module(
        "own_unwatched",
        """from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
class Own(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.layer = nn.Linear(64, 10)
    def forward(self, x):
        if _get_current_dispatch_mode() is not None:
            raise ValueError("watched")
        return self.layer(x.flatten(1))
""",
    )
    own = ("model._target_=own_unwatched.Own", "allow_targets=[own_unwatched]")
    words = ("tracker=local", "duration=1", *own)
    train(*words)
    assert cli.main(["preview", *words]) == 0
    lines = [*logged_warnings(), *capsys.readouterr().out.splitlines()]
    assert sum("flops_per_sample is 0: torch cannot count them" in line for line in lines) == 2
