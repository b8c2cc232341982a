"""Weights from a file: of the same names, shapes and kinds as those of the model, or refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hydrant.errors import ConfigError
from hydrant.training.checkpoint.weights import find_weights


def write(path: Path, weight: torch.Tensor, num_batches: torch.Tensor) -> Path:
    model = nn.BatchNorm1d(3)
    save_file({**model.state_dict(), "weight": weight, "num_batches_tracked": num_batches}, path)
    return path


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_floats_of_any_size_are_converted(dtype: torch.dtype, tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.safetensors", torch.full((3,), 0.5, dtype=dtype), torch.tensor(7, dtype=torch.int32)
    )
    model = nn.BatchNorm1d(3)
    find_weights(str(file), "init_from").load(model, "init_from")
    assert model.weight.tolist() == [0.5] * 3
    assert (model.num_batches_tracked, model.weight.dtype) == (7, torch.float32)


@pytest.mark.parametrize(
    ("weight", "num_batches", "message"),
    [
        (torch.full((3,), 1 + 2j), torch.tensor(7), "weight is (3,) complex in the file, (3,) in the model"),
        (torch.full((3,), True), torch.tensor(7), "weight is (3,) bool in the file, (3,) in the model"),
        (torch.full((3,), 1), torch.tensor(7), "weight is (3,) int in the file, (3,) in the model"),
        (torch.ones(3), torch.tensor(7.5), "num_batches_tracked is () in the file, () int in the model"),
    ],
)
def test_other_kinds_are_refused(
    weight: torch.Tensor,
    num_batches: torch.Tensor,
    message: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = write(tmp_path / "a.safetensors", weight, num_batches)
    model = nn.BatchNorm1d(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ConfigError) as caught:
        find_weights(str(file), "init_from").load(model, "init_from")
    assert message in str(caught.value)
    find_weights(str(file), "init_from").load(model, "init_from", strict=False)
    name = message.partition(" ")[0]
    assert torch.equal(model.state_dict()[name], before[name])
    assert message in caplog.text


def test_a_link_to_itself_holds_no_weights(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match=r"init_from: .*loop does not exist"):
        find_weights(str(tmp_path / "loop"), "init_from")
