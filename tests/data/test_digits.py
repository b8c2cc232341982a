"""The digits and their split are those of scikit-learn."""

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sources import joined, spec

from hydrant.data import digits
from hydrant.errors import ConfigError


@pytest.mark.parametrize("val_ratio", [-0.1, 1.0, 1e-4])
def test_a_split_without_samples_is_rejected(val_ratio: float) -> None:
    with pytest.raises(ConfigError, match=r"^data\.val_ratio: "):
        digits(val_ratio=val_ratio)


@pytest.mark.parametrize("val_ratio", [0.013, 0.2, 1 / 3, 0.9])
def test_digits_and_their_split_are_those_of_scikit_learn(val_ratio: float) -> None:
    images, labels = load_digits(return_X_y=True)
    inputs = (torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16 - 0.3053) / 0.3760
    for seed in range(5):
        data = digits(val_ratio=val_ratio, split_seed=seed)
        sides = train_test_split(range(len(labels)), test_size=val_ratio, random_state=seed, stratify=labels)
        for source, side in zip((data.train, data.val), sides, strict=True):
            split_inputs, split_targets = joined(source.batches(spec(), 2000))
            assert torch.equal(split_inputs, inputs[sorted(side)])
            assert split_targets.tolist() == labels[sorted(side)].tolist()


def test_the_split_depends_on_the_classes_and_the_split_seed() -> None:
    data = digits()
    assert (data.train.num_samples, data.val.num_samples) == (1437, 360)
    counts = torch.bincount(joined(data.val.batches(spec(), 360))[1])
    assert counts.min() >= 34
    assert counts.max() <= 38
    train, _ = joined(data.train.batches(spec(), 2000))
    assert abs(train.mean()) < 0.01  # normalized
    assert abs(train.std() - 1) < 0.01
    other = joined(digits(split_seed=1).val.batches(spec(), 360))
    assert not torch.equal(joined(data.val.batches(spec(), 360))[0], other[0])


def test_a_test_set_is_cut_apart_from_the_others() -> None:
    plain, cut = digits(), digits(test_ratio=0.25)
    assert plain.test is None
    assert cut.test is not None
    parts = [joined(source.batches(spec(), 2000)) for source in (cut.train, cut.val, cut.test)]
    assert [len(targets) for _, targets in parts] == [987, 360, 450]
    for _, targets in parts:
        ratios = torch.bincount(targets) / len(targets)
        assert ratios.max() - ratios.min() < 0.02
    images = torch.cat([inputs for inputs, _ in parts]).flatten(1)
    every = torch.cat([joined(s.batches(spec(), 2000))[0] for s in (plain.train, plain.val)]).flatten(1)
    assert len(images) == len(every)
    assert torch.equal(images.unique(dim=0), every.unique(dim=0))
    fewer: Any = digits(test_ratio=0.25, val_ratio=0.1).test
    assert torch.equal(joined(fewer.batches(spec(), 2000))[0], parts[2][0]), (
        "the test set does not depend on val_ratio"
    )
    message = r"^data\.val_ratio: 0\.5, with test_ratio=0\.5, leaves no training"
    with pytest.raises(ConfigError, match=message):
        digits(val_ratio=0.5, test_ratio=0.5)
