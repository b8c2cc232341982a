"""Label noise: a part of the training labels is wrong, as a function of its seed."""

from typing import Any

import numpy as np
import pytest
import torch
from sources import in_memory, joined, same, spec, update

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.data import Data, InMemorySource, LoaderSource, Source, synthetic
from hydrant.data.base import labels_of
from hydrant.data.splits import divide, with_label_noise
from hydrant.errors import ConfigError
from hydrant.sweeps.preflight import program_of

NUM = 20_000


class Classes:
    """Samples whose value is their index; their classes are known without reading them."""

    def __init__(self, targets: np.ndarray) -> None:
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, int(self.targets[index])


def as_float(value: int) -> torch.Tensor:
    return torch.tensor([float(value)])


def sources(targets: np.ndarray) -> list[Source]:
    inputs = torch.arange(len(targets), dtype=torch.float32).view(-1, 1)
    loader = LoaderSource(Classes(targets), as_float, as_float, (), (), 0)
    return [InMemorySource(inputs, torch.from_numpy(targets)), loader]


def labels(source: Source) -> np.ndarray:
    found = labels_of(source)
    assert found is not None
    return found


@pytest.mark.parametrize("ratio", [0.0, 0.15, 1.0])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_each_label_is_one_of_the_others_with_this_probability(ratio: float, num_classes: int) -> None:
    clean = np.arange(NUM) % num_classes
    source = sources(clean)[0]
    noisy = labels(with_label_noise(source, ratio, 0, num_classes))
    is_changed = noisy != clean
    assert is_changed.mean() == pytest.approx(ratio, abs=4 * (0.25 / NUM) ** 0.5 if 0 < ratio < 1 else 0)
    if ratio:
        shifts = np.bincount((noisy - clean)[is_changed] % num_classes, minlength=num_classes)
        assert shifts[0] == 0
        assert shifts[1:] / is_changed.sum() == pytest.approx(1 / (num_classes - 1), abs=0.03)
    assert noisy.min() >= 0
    assert noisy.max() < num_classes
    assert labels(source).tolist() == clean.tolist()


def test_it_is_a_function_of_the_seed_and_the_place() -> None:
    clean = np.arange(300) % 10
    whole = labels(with_label_noise(sources(clean)[0], 0.4, 3, 10))
    assert whole.tolist() == labels(with_label_noise(sources(clean)[0], 0.4, 3, 10)).tolist()
    assert whole.tolist() != labels(with_label_noise(sources(clean)[0], 0.4, 4, 10)).tolist()
    assert whole[:7].tolist() == labels(with_label_noise(sources(clean[:7])[0], 0.4, 3, 10)).tolist()


def test_sources_in_memory_and_of_workers_have_the_same_labels_beside_their_inputs() -> None:
    clean = np.arange(25) % 10
    one, other = (with_label_noise(source, 0.5, 0, 10) for source in sources(clean))
    assert same(update(one, 3), update(other, 3))
    assert same(*(joined(s.subset(range(3, 20, 2)).batches(spec(), 4)) for s in (one, other)))
    inputs, targets = update(one, 0)
    assert targets.tolist() == labels(one)[inputs.flatten().long().numpy()].tolist()


def test_augmented_inputs_and_labels_that_are_no_class_stay() -> None:
    source = in_memory()
    assert torch.equal(update(with_label_noise(source, 1.0, 0, 10), 0)[0], update(source, 0)[0])
    ignored = np.array([-100, 3, -100, 12])
    noisy = labels(with_label_noise(sources(ignored)[0], 1.0, 0, 10))
    assert noisy[[0, 2, 3]].tolist() == [-100, -100, 12]
    assert noisy[1] != 3


class Transformed(Classes):
    """Its samples have other classes than its attribute says, as with the `target_transform` of torchvision."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, 9 - int(self.targets[index])


def test_noise_changes_the_label_that_a_sample_has_when_it_is_read() -> None:
    clean = np.arange(NUM) % 10
    source = with_label_noise(
        LoaderSource(Transformed(clean), as_float, as_float, (), (), 0), 0.15, 0, 10
    ).subset(range(500))
    wrong = with_label_noise(sources(clean)[0], 0.15, 0, 10)
    _, read = joined(source.batches(spec(), 100))
    assert ((read.numpy() != 9 - clean[:500]) == (labels(wrong) != clean)[:500]).all()


def test_classes_above_the_range_of_the_targets_type_are_kept() -> None:
    clean = torch.arange(NUM) % 100
    source = InMemorySource(torch.zeros(NUM, 1), clean.to(torch.uint8))
    whole = InMemorySource(torch.zeros(NUM, 1), clean)
    noisy, expected = (labels(with_label_noise(s, 1.0, 0, 1000)).tolist() for s in (source, whole))
    assert noisy == expected


@pytest.mark.parametrize(
    ("source", "num_classes", "reason"),
    [
        (InMemorySource(torch.zeros(4, 1), torch.zeros(4)), None, "needs a classification whose labels are known"),
        (InMemorySource(torch.zeros(4, 1), torch.zeros(4, 2).long()), 2, "needs a classification whose labels"),
        (synthetic(input_shape=(1,), num_classes=3, num_samples=4).train, 3, "needs a classification whose labels"),
    ],
)  # fmt: skip
def test_what_has_no_labels_is_refused(source: Source, num_classes: int | None, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"^label_noise: {reason}"):
        with_label_noise(source, 0.5, 0, num_classes)


def configured(*words: str) -> dict[str, Any]:
    return check(compose(["label_noise=0.5", *words]))


@pytest.mark.parametrize("words", [(), ("folds=5", "fold=1"), ("limit_train_samples=40",)])
def test_only_training_labels_change(words: tuple[str, ...]) -> None:
    clean = np.arange(100) % 10
    source, val, test = sources(clean)[0], sources(clean[:30])[0], sources(clean[:20])[0]
    whole = Data(source, val, (1,), 10, test=test)
    noisy, plain = (divide(configured(*words, word), whole) for word in ("label_noise=0.5", "label_noise=0"))
    num_wrong = (labels(noisy.train) != labels(plain.train)).sum()
    assert 0.3 < num_wrong / len(labels(plain.train)) < 0.7
    assert labels(noisy.val).tolist() == labels(plain.val).tolist()
    assert noisy.test is not None
    assert plain.test is not None
    assert labels(noisy.test).tolist() == labels(plain.test).tolist()


def test_lanes_share_their_labels_and_other_noise_is_another_program() -> None:
    assert program_of(configured("seed=0")) == program_of(configured("seed=1"))
    assert program_of(configured()) != program_of(configured("label_noise=0.4"))
    assert program_of(configured()) != program_of(configured("label_noise_seed=1"))


@pytest.mark.parametrize("word", ["label_noise=1.1", "label_noise=-0.1", "label_noise_seed=-1"])
def test_wrong_values_are_refused_with_the_key(word: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{word.partition('=')[0]}: "):
        configured(word)
