"""A warning names what training changes and reads, and no checkpoint holds; buffers that training writes are listed."""

import pytest
import torch
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome
from hydrant.training.prepare.rehearsal import rehearsal, written_buffers


class Holding(nn.Module):
    """Keeps a value in its training passes, in one of several ways, and may read it in the next one."""

    def __init__(self, kind: str, *, reads: bool = True) -> None:
        super().__init__()
        self.kind, self.reads, self.linear, self.dropout = kind, reads, nn.Linear(3, 2), nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(2)
        self.count, self.ratio, self.is_begun = 0, 1.0, False
        self.queue, self.never = torch.zeros(2), torch.tensor(float("nan"))
        self.cache: Tensor | None = None
        self.register_buffer("lost", torch.zeros(()), persistent=False)
        self.register_buffer("kept", torch.zeros(()))
        self.register_buffer("state", None)
        self.register_buffer("edges", torch.eye(3).to_sparse(), persistent=False)

    def forward(self, batch: Batch) -> Outcome:
        outputs = self.dropout(self.norm(self.linear(batch.inputs)))
        mean, read = outputs.detach().mean(0), torch.zeros(())
        match self.kind:
            case "number":
                read, self.count = torch.tensor(self.count), self.count + 1
            case "fraction":
                read, self.ratio = torch.tensor(self.ratio), self.ratio * 0.9
            case "tensor":
                read, self.queue = self.queue, 0.9 * self.queue + 0.1 * mean
            case "buffer":
                read = self.lost.clone()
                self.lost.mul_(0.9).add_(mean[0] + 1)
            case "saved buffer":
                read = self.kept.clone()
                self.kept.data.add_(1)  # is counted by no version of the tensor
            case "new buffer":
                read = torch.zeros(2) if self.state is None else self.state
                self.state = mean
            case "cache":
                read = self.cache = torch.ones(2) if self.cache is None else self.cache
            case "of a saved buffer":
                self.kept += 1
                read = self.aux = self.kept / 2
            case "output":
                self.aux, self.last = mean.sum(), outputs
            case "flag" | "flag of a cache":
                if not self.is_begun and self.kind == "flag":
                    self.linear.weight.data = 2 * self.linear.weight.data
                self.is_begun = True
            case _:
                pass
        return Outcome({"loss": outputs.mean() + read.sum() * self.reads}, {}, outputs, 2)


class Saving(Holding):
    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.count)

    def set_extra_state(self, state: Tensor) -> None:
        self.count = int(state)


@pytest.mark.parametrize(
    ("model", "warned", "written"),
    [
        (Holding("number"), "inner.count", ""),
        (Holding("number", reads=False), "", ""),
        (Holding("fraction"), "inner.ratio", ""),
        (Holding("flag"), "inner.is_begun", ""),
        (Holding("flag of a cache"), "", ""),
        (Holding("tensor"), "inner.queue", ""),
        (Holding("tensor", reads=False), "", ""),
        (Holding("buffer"), "inner.lost", "inner.lost"),
        (Holding("saved buffer"), "", "inner.kept"),
        (Holding("new buffer"), "", "inner.state"),
        (Holding("of a saved buffer"), "", "inner.kept"),
        (Holding("cache"), "", ""),
        (Holding("output"), "", ""),
        (Holding("nothing"), "", ""),
        (Saving("number"), "", ""),
    ],
)
def test_state_outside_of_checkpoints_that_training_reads_is_named(
    model: nn.Module, warned: str, written: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, batch: Batch) -> Outcome:
            return self.inner(batch)

    # So many that dropout never leaves a mean of 0.
    task, batch = Outer(), Batch(torch.randn(64, 3), torch.zeros(64))
    before = torch.get_rng_state()
    for attempt in range(2):  # nothing is left of the first one
        caplog.clear()
        with rehearsal(task):
            _, names = written_buffers(task, lambda: (None, task(batch)))
        assert ", ".join(names) == written, attempt
        named = [record.message.split()[3].rstrip(",") for record in caplog.records]
        assert named == [warned] * bool(warned), attempt
    assert torch.equal(torch.get_rng_state(), before)
