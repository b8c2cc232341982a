"""Folds divide the training set, in the same way for every run, and their validation samples are not augmented."""

from typing import Any

import numpy as np
import pytest
import torch
from sources import GLOBAL_BATCH_SIZE, joined, spec, update

from hydrant.data import Data, InMemorySource, LoaderSource, ShiftFlip, Source
from hydrant.data.splits import cut_fold, fold_numbers
from hydrant.data.vision import SyntheticSource
from hydrant.errors import ConfigError

NUM_SAMPLES, NUM_CLASSES = 53, 4
LABELS = np.array([n * n % 7 % NUM_CLASSES for n in range(NUM_SAMPLES)])


class Numbers:
    """Samples whose input is their index; with `targets`, like the data sets of torchvision."""

    targets = LABELS.tolist()

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), int(LABELS[index])


def sources() -> dict[str, Source]:
    inputs = torch.arange(float(NUM_SAMPLES)).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    memory = InMemorySource(inputs, torch.from_numpy(LABELS), augment=ShiftFlip(1, flip=True))
    same: Any = torch.Tensor.clone
    loader = LoaderSource(Numbers(), same, same, (), (), num_workers=0)
    return {"memory": memory, "loader": loader, "synthetic": SyntheticSource(range(NUM_SAMPLES), (3,), 4)}


@pytest.mark.parametrize("folds", [2, 5, NUM_SAMPLES])
@pytest.mark.parametrize("labels", [None, LABELS])
def test_folds_have_equal_sizes_and_equal_shares_of_each_class(folds: int, labels: np.ndarray | None) -> None:
    numbers = fold_numbers(NUM_SAMPLES, folds, 0, labels)
    for chosen in [np.ones(NUM_SAMPLES, dtype=bool)] if labels is None else [
        LABELS >= 0, *(labels == label for label in range(NUM_CLASSES))
    ]:  # fmt: skip
        sizes = np.bincount(numbers[chosen], minlength=folds)
        assert sizes.max() - sizes.min() <= 1
    assert not np.array_equal(numbers, fold_numbers(NUM_SAMPLES, folds, 1, labels))


def test_folds_never_change() -> None:
    """Another division would mix the samples of a cross-validation that is continued by a later version."""
    numbers = fold_numbers(12, 3, seed=0, labels=np.array([0, 1, 2] * 4))
    assert numbers.tolist() == [1, 1, 2, 0, 1, 1, 0, 2, 2, 2, 0, 0]


@pytest.mark.parametrize("name", ["memory", "loader", "synthetic"])
def test_the_folds_of_any_source_divide_its_samples(name: str) -> None:
    whole, folds = sources()[name], 5
    every = joined(whole.batches(spec(), 100))[0].flatten(1)
    held_out = list[torch.Tensor]()
    for fold in range(folds):
        data = cut_fold(Data(whole, whole.subset(range(0))), folds, fold, seed=0)
        train, val = (joined(part.batches(spec(), 100))[0].flatten(1) for part in (data.train, data.val))
        held_out.append(val)
        assert data.train.num_samples + data.val.num_samples == NUM_SAMPLES
        assert len(torch.cat([train, val]).unique(dim=0)) == NUM_SAMPLES
        assert update(data.train, 0)[0].shape[0] == GLOBAL_BATCH_SIZE
        assert data.test is None
    assert torch.equal(torch.cat(held_out).sort(dim=0).values, every.sort(dim=0).values)


def test_the_classes_are_known_also_of_a_part_of_the_samples() -> None:
    for name in ("memory", "loader"):
        whole: Any = sources()[name]
        assert whole.labels.tolist() == LABELS.tolist()
        assert whole.subset(np.array([5, 3])).subset(range(2)).labels.tolist() == LABELS[[5, 3]].tolist()


def test_what_the_option_validates_on_becomes_the_test_set_if_there_is_none() -> None:
    train, val, test = (sources()["memory"] for _ in range(3))
    assert cut_fold(Data(train, val), 3, 0, 0).test is val
    assert cut_fold(Data(train, val, test=test), 3, 0, 0).test is test


def test_more_folds_than_samples_are_refused() -> None:
    train = sources()["memory"]
    with pytest.raises(ConfigError, match=r"^folds: 54 folds of 53 training samples leave some empty"):
        cut_fold(Data(train, train), 54, 0, 0)


def test_names_of_samples_survive_a_choice() -> None:
    loader: Any = sources()["loader"]
    assert loader.subset(np.array([7, 9])).subset(range(1, 2)).name_of(0) == loader.name_of(9)
