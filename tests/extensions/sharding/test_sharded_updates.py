"""An update of sharded weights takes as many operations for many of them as for few. Four real ranks, gloo."""

from typing import Any

import pytest
import torch
from sharded_updates import MANY, MESHES, sharded_updates, three_updates

_NAMES = ("Adam", "SGD", "Adagrad", "RMSprop", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam")
CASES: dict[str, dict[str, Any]] = {
    **{name: {"optimizer": getattr(torch.optim, name)} for name in _NAMES},
    "clipped by norm": {"optimizer": torch.optim.AdamW, "clipping": {"max_norm": 0.5}},
    "clipped by value": {"optimizer": torch.optim.AdamW, "clipping": {"max_value": 0.1}},
    "with a loss scaler": {"optimizer": torch.optim.AdamW, "scale_loss": True},
}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], Any]:
    return sharded_updates(CASES)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mesh", MESHES)
def test_the_operations_do_not_grow_with_the_number_of_weights(
    mesh: str, name: str, found: dict[tuple[str, str], Any]
) -> None:
    assert found[mesh, name]["few"] == found[mesh, name]["many"]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mesh", MESHES)
def test_the_results_are_those_of_whole_weights(
    mesh: str, name: str, found: dict[tuple[str, str], Any]
) -> None:
    _, expected = three_updates(CASES[name], MANY, None)
    torch.testing.assert_close(found[mesh, name]["result"], expected)
