"""A warning names what training changes and no checkpoint holds; it does not name what each pass computes again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome
from hydrant.training.prepare.unsaved_state import UnsavedState
from hydrant.training.profiling import count_flops


class Holding(nn.Module):
    """Keeps a value in its training passes, in one of several ways."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear, self.dropout = kind, nn.Linear(3, 2), nn.Dropout(0.5)
        self.count, self.ratio, self.aux = 0, 1.0, torch.tensor(0.0)
        self.queue, self.never = torch.zeros(2), torch.tensor(float("nan"))
        self.cache: Tensor | None = None
        self.register_buffer("lost", torch.zeros(()), persistent=False)
        self.register_buffer("kept", torch.zeros(()))

    def forward(self, batch: Batch) -> Outcome:
        outputs = self.dropout(self.linear(batch.inputs))
        if self.training:
            mean = outputs.detach().mean(0)
            match self.kind:
                case "number":
                    self.count += 1
                case "fraction":
                    self.ratio *= 0.9
                case "tensor":
                    self.queue = 0.9 * self.queue + 0.1 * mean
                case "buffer":
                    self.lost.mul_(0.9).add_(mean[0])
                case "saved buffer":
                    self.kept += 1
                case "cache":
                    self.cache = torch.ones(2) if self.cache is None else self.cache
                case "of a saved buffer":
                    self.kept += 1
                    self.aux = self.kept / 2
                case "output":
                    self.aux, self.last = mean.sum(), outputs
                case _:
                    pass
        return Outcome({"loss": outputs.mean()}, {}, outputs, 2)


class Saving(Holding):
    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.count)

    def set_extra_state(self, state: Tensor) -> None:
        self.count = int(state)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Holding("number"), "inner.count"),
        (Holding("fraction"), "inner.ratio"),
        (Holding("tensor"), "inner.queue"),
        (Holding("buffer"), "inner.lost"),
        (Holding("saved buffer"), ""),
        (Holding("of a saved buffer"), ""),
        (Holding("cache"), ""),
        (Holding("output"), ""),
        (Holding("nothing"), ""),
        (Saving("number"), ""),
    ],
)
def test_state_outside_of_checkpoints_is_named(
    model: nn.Module, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, batch: Batch) -> Outcome:
            return self.inner(batch)

    # So many that dropout never leaves a mean of 0.
    task, batch = Outer(), Batch(torch.ones(64, 3), torch.zeros(64))
    before, flops = torch.get_rng_state(), count_flops(task, batch)
    for attempt in range(2):  # nothing is left of the first one
        caplog.clear()
        assert count_flops(task, batch, UnsavedState(task).warn_of_changes) == flops
        assert [record.message.split()[3].rstrip(",") for record in caplog.records] == [name] * bool(name), (
            attempt
        )
    assert torch.equal(torch.get_rng_state(), before)
