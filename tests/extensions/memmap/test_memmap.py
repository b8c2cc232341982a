"""NumPy files that stay on disk."""

import mmap
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exact_ids import IDS, check_exact
from sources import joined, same, spec, update
from special_files import check_refuses_pipe, ends
from torch import nn

import hydrant
from hydrant.data import Data, InMemorySource
from hydrant.errors import ConfigError, DataError
from hydrant.extensions.memmap import Arrays, memmap

__all__ = ["ends"]


def write(folder: Path, **arrays: np.ndarray) -> str:
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return str(folder)


def read(folder: str, num_workers: int = 0) -> Data:
    return memmap(
        train=folder, val=folder, test=folder, extra_val={"night": folder}, input_shape=None, num_classes=None,
        num_workers=num_workers,
    )  # fmt: skip


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_samples_are_those_of_tensors_in_memory(num_workers: int, tmp_path: Path) -> None:
    inputs, targets = np.random.default_rng(0).normal(size=(25, 3)), np.arange(25) % 4
    data = read(write(tmp_path / "set", inputs=inputs, targets=targets), num_workers)
    reference = InMemorySource(torch.from_numpy(inputs).float(), torch.from_numpy(targets))
    for world_size, micro_batch_size in ((1, 12), (2, 3)):
        parts = update(data.train, 3, world_size, micro_batch_size=micro_batch_size)
        assert same(parts, update(reference, 3))
    assert data.test is not None
    assert same(joined(data.test.batches(spec(), 7)), joined(reference.batches(spec(), 25)))


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.int32, np.int64, np.uint8, np.bool_])
def test_several_files_are_a_dict_and_integers_stay_integers(kind: Any, tmp_path: Path) -> None:
    largest = 2**20 if np.iinfo(np.int64 if kind is np.bool_ else kind).max > 2**20 else 1
    ids = (np.arange(12).reshape(6, 2) % 2 * largest).astype(kind)
    data = read(write(tmp_path / "set", ids=ids, weight=np.ones(6, dtype=np.float32)))
    batch = next(iter(data.val.batches(spec(), 6)))
    assert batch.inputs["ids"].tolist() == ids.tolist()
    assert not batch.inputs["ids"].is_floating_point()
    assert batch.inputs["ids"].dtype == (
        torch.int64 if kind in (np.uint16, np.uint32) else torch.from_numpy(ids).dtype
    )
    assert batch.inputs["weight"].tolist() == [1] * 6
    assert not batch.targets


def test_ids_arrive_exactly_in_every_precision(tmp_path: Path) -> None:
    check_exact(read(write(tmp_path / "set", ids=IDS.numpy())))


def test_a_pipe_in_the_place_of_a_file(tmp_path: Path) -> None:
    check_refuses_pipe(lambda file: read(str(file.parent)), "inputs.npy", tmp_path)


def test_files_are_mapped_also_in_a_copy_for_a_worker(tmp_path: Path) -> None:
    arrays = Arrays.open("data.train", Path(write(tmp_path / "set", inputs=np.zeros((10**5, 8)))))
    copy = pickle.dumps(arrays)
    assert len(copy) < 1000
    [mapped] = pickle.loads(copy)._arrays.values()
    assert isinstance(mapped.base, mmap.mmap)


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({}, ConfigError, "data.train: .* is no folder with inputs.npy"),
        ({"targets": np.zeros(3)}, ConfigError, "is no folder with inputs.npy"),
        ({"inputs": np.zeros(3), "targets": np.zeros(2)}, ConfigError, "3 in inputs.npy, 2 in targets.npy"),
        ({"inputs": np.zeros(())}, DataError, "inputs.npy cannot be read: TypeError: len\\(\\) of unsized"),
        ({"inputs": np.array(["a"])}, DataError, "inputs.npy cannot be read: TypeError"),
        ({"inputs": np.array([{}])}, DataError, "inputs.npy cannot be read"),  # a pickle may execute code
    ],
)
def test_other_folders_are_refused(arrays: Any, error: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        read(write(tmp_path / "set", **arrays))


class Sums(nn.Module):
    """Two numbers of a sample whose inputs are of one type."""

    def __init__(self, needed: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.needed = needed

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert inputs.dtype == self.needed
        return self.layer(inputs.float() / 255)


@pytest.mark.parametrize(
    ("kind", "needed", "other"), [(np.uint8, torch.uint8, "int"), (np.uint16, torch.int64, "uint8")]
)
def test_an_array_is_predicted_as_the_same_samples_of_a_split(
    kind: Any, needed: torch.dtype, other: str, tmp_path: Path
) -> None:
    """Bytes stay bytes: a tensor of them holds no pixels, which would be scaled."""
    values = np.random.default_rng(0).integers(0, 50, (12, 4)).astype(kind)
    data, model = read(write(tmp_path / "set", inputs=values, targets=np.arange(12) % 2)), Sums(needed)
    config = hydrant.compose(["tracker=local", "duration=2", "global_batch_size=4"])
    run = hydrant.train(config, data=data, model=model, folder=tmp_path / "run")
    split, array = (hydrant.predict(run, inputs)["logits"] for inputs in ("val", torch.from_numpy(values)))
    assert np.array_equal(split, array)
    refusal = f"has numbers of the type {other.rstrip('8')}, but the run needs .*; convert"
    with pytest.raises(ConfigError, match=refusal):
        hydrant.predict(run, torch.from_numpy(values.astype(other)))


def test_tensors_that_numpy_does_not_take_are_predicted(tmp_path: Path) -> None:
    values = np.arange(48, dtype=np.float32).reshape(12, 4)
    data = read(write(tmp_path / "set", inputs=values, targets=np.arange(12) % 2))
    config = hydrant.compose(["tracker=local", "duration=2", "global_batch_size=4"])
    run = hydrant.train(config, data=data, model=nn.Linear(4, 2), folder=tmp_path / "run")
    inputs = torch.from_numpy(values)
    for tensor in (inputs.bfloat16(), inputs.clone().requires_grad_()):
        assert np.array_equal(hydrant.predict(run, tensor)["logits"], hydrant.predict(run, "val")["logits"])
