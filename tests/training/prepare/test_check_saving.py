"""What a checkpoint cannot hold is refused before the first update."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_runs import DIGITS, Train, UserModule

from hydrant.errors import ConfigError
from hydrant.training.hooks import Hooks
from hydrant.training.prepare.rehearsal import check_saving

EXPANDED = """
import torch
from hydrant.models import MLP

class Expanded(MLP):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.register_buffer("mask", torch.ones(1, 1).expand(4, 4))
"""


class Holding(nn.Module):
    """A model that holds a buffer."""

    def __init__(self, value: Tensor | None = None) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.inner = nn.Linear(2, 2)
        self.model.inner.register_buffer("own", value)


REFUSED: dict[str, Any] = {
    "expanded": torch.ones(1, 1).expand(4, 4),
    "expanded row": torch.ones(1, 3).expand(4, 3),
    "sparse": torch.eye(3).to_sparse(),
}
SAVED = {"whole": torch.ones(4, 4), "scalar": torch.tensor(3.0), "empty": torch.zeros(0, 3),
         "transposed": torch.arange(6.0).view(2, 3).T, "part of another": torch.arange(20.0).view(4, 5)[1:3, ::2],
         "integers": torch.arange(4), "flags": torch.tensor([True, False]),
         "halves": torch.ones(3, dtype=torch.bfloat16)}  # fmt: skip


def test_a_type_that_no_file_of_weights_has_is_named_with_the_precision_that_gives_it() -> None:
    message = r"own cannot be saved.*complex128; make it .*complex64, so not precision=fp64"
    with pytest.raises(ConfigError, match=message):
        check_saving(Holding(torch.ones(2, dtype=torch.complex128)), Hooks({}))


@pytest.mark.parametrize("kind", REFUSED)
def test_a_tensor_that_cannot_be_read_back_is_named(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"^model: inner\.own cannot be saved and read again: "):
        check_saving(Holding(REFUSED[kind]), Hooks({}))


@pytest.mark.parametrize("kind", SAVED)
def test_a_tensor_that_can_be_saved_passes_and_stays_as_it_is(kind: str) -> None:
    before = SAVED[kind].clone()
    check_saving(Holding(SAVED[kind]), Hooks({}))
    assert torch.equal(SAVED[kind], before)


class Counted(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}

    def set_extra_state(self, state: dict[str, int]) -> None: ...


class Remembers:
    def state_dict(self) -> dict[str, Any]:
        return {"seen": {1, 2}}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_what_is_no_tensor_and_no_plain_type_is_refused() -> None:
    task = Holding()
    task.model.inner = Counted(2, 2)
    with pytest.raises(ConfigError, match=r"^model: inner\._extra_state cannot be saved"):
        check_saving(task, Hooks({}))
    with pytest.raises(ConfigError, match=r"^hooks: their state cannot be saved: .*set is not a plain type"):
        check_saving(Holding(), Hooks({"remembers": Remembers()}))


def test_a_run_ends_before_its_first_update_unless_it_saves_nothing(
    train: Train, user_module: UserModule, capsys: pytest.CaptureFixture[str]
) -> None:
    user_module("expanded", EXPANDED)
    words = (*DIGITS, "model._target_=expanded.Expanded", "allow_targets=[expanded]", "duration=2")
    folder = train(*words, status=2)
    assert "model: mask cannot be saved and read again: " in capsys.readouterr().err
    assert not folder.exists()
    train(*words, "save_every=null", "eval_every=null")
