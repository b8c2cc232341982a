"""Classification: the losses of torch, for samples, pixels and labels, and the targets that count."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn
from torch.testing import assert_close

from hydrant.batch import Batch
from hydrant.errors import ConfigError
from hydrant.tasks import Classification
from hydrant.tasks.base import explain_unknown_class

SHAPES = [(7, 5), (7, 5, 3), (2, 5, 4, 3)]


def make_task(**settings: Any) -> Classification:
    return Classification(nn.Identity(), **{"label_smoothing": 0.0, "metrics": {}, **settings})


def samples(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return logits of this shape and class indices."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, generator=generator)
    return logits, torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_class_indices_is_torch_s_bit_for_bit(shape: tuple[int, ...], smoothing: float) -> None:
    logits, targets = samples(shape)
    outcome = make_task(label_smoothing=smoothing)(Batch(logits, targets))
    assert torch.equal(outcome.total_loss(), F.cross_entropy(logits, targets, label_smoothing=smoothing))
    assert torch.equal(outcome.measurements["accuracy"], logits.argmax(1) == targets)
    assert outcome.num_targets == targets.numel()


@pytest.mark.parametrize("shape", SHAPES)
def test_class_probabilities_are_one_target(shape: tuple[int, ...]) -> None:
    logits, indices = samples(shape)
    targets = F.one_hot(indices, shape[1]).movedim(-1, 1).float()
    outcome = make_task()(Batch(logits, targets))
    assert_close(outcome.total_loss(), F.cross_entropy(logits, indices))
    assert outcome.num_targets == indices.numel()


@pytest.mark.parametrize(
    ("targets", "settings"),
    [
        ([[1, -1]], {"multi_label": True, "ignore_index": -1}),
        ([[-1, -1]], {"multi_label": True, "ignore_index": -1}),
        ([[True, False]], {"multi_label": True}),
        ([[0.3, 0.7]], {}),
        ([[0.0, 0.0]], {}),  # none
        ([[0.5, 0.25]], {}),  # a lower weight
        ([[2.0, -1.0]], {}),  # weights, which torch's cross entropy takes too
        ([[1.0, 1.0]], {}),
        ([[1, -1]], {"multi_label": True}),
        ([[0, 255]], {"multi_label": True}),
        ([[7.0, -2.0]], {"loss": lambda outputs, targets: (outputs - targets).mean()}),
        ([1], {}),
    ],
)
def test_targets_that_torch_trains_on_are_taken(targets: Any, settings: dict[str, Any]) -> None:
    task = make_task(**settings)
    task(Batch(torch.zeros(1, 2), torch.tensor(targets)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_ignored_targets_do_not_count(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    logits, indices = samples(shape)
    indices.flatten()[::3] = 255
    outcome = make_task(ignore_index=255, label_smoothing=0.1)(Batch(logits, indices.to(dtype)))
    reference = F.cross_entropy(logits, indices, ignore_index=255, label_smoothing=0.1)
    assert_close(outcome.total_loss(), reference)
    valid = indices != 255
    assert int(outcome.num_targets) == int(valid.sum())
    is_right = (logits.argmax(1) == indices)[valid]
    assert_close(outcome.measurements["accuracy"], is_right.float().mean())


def test_a_batch_of_ignored_targets_has_no_gradient() -> None:
    logits = torch.randn(4, 3, requires_grad=True)
    outcome = make_task(ignore_index=-100)(Batch(logits, torch.full((4,), -100)))
    outcome.total_loss().backward()
    assert float(outcome.total_loss().detach()) == 0
    assert torch.equal(logits.grad, torch.zeros(4, 3))


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_multiply_the_terms_and_are_not_normalized(shape: tuple[int, ...]) -> None:
    logits, targets = samples(shape)
    weights = [1.0, 2.0, 0.5, 4.0, 3.0]
    outcome = make_task(class_weights=weights)(Batch(logits, targets))
    terms = torch.tensor(weights)[targets] * F.cross_entropy(logits, targets, reduction="none")
    assert_close(outcome.total_loss(), terms.mean())


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_classes_in_the_last_dimension(shape: tuple[int, ...]) -> None:
    logits, targets = samples(shape)
    targets.flatten()[::3] = -100
    one, other = (
        make_task(ignore_index=-100, class_dim=dim)(Batch(logits.movedim(1, dim).contiguous(), targets))
        for dim in (1, -1)
    )
    assert_close(one.total_loss(), other.total_loss())
    assert one.measurements == other.measurements
    assert torch.equal(one.predictions, other.predictions)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_labels_have_the_binary_cross_entropy(shape: tuple[int, ...], smoothing: float) -> None:
    logits, _ = samples(shape)
    targets, weights = torch.rand(shape).gt(0.5).int(), [1.0, 2.0, 0.5, 4.0, 3.0]
    task = make_task(multi_label=True, class_weights=weights, label_smoothing=smoothing)
    outcome = task(Batch(logits, targets))
    factors = torch.tensor(weights).view(-1, *[1] * (len(shape) - 2))
    smoothed = targets * (1 - smoothing) + smoothing / 2
    reference = F.binary_cross_entropy_with_logits(logits, smoothed, pos_weight=factors)
    assert_close(outcome.total_loss(), reference)
    is_right = (logits > 0) == targets.bool()
    assert torch.equal(outcome.measurements["accuracy"], is_right)
    assert torch.equal(outcome.measurements["exact_match"], is_right.flatten(1).all(1))
    assert outcome.num_targets == targets.numel()


def with_labels(labels: np.ndarray | None) -> Any:
    return SimpleNamespace(class_names=None, train=SimpleNamespace(labels=labels))


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 2])
    task = make_task(class_weights="balanced")
    task.receive_data(with_labels(labels))
    assert task.class_weights is not None
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert_close(task.class_weights, torch.tensor(expected, dtype=torch.float32))
    ignoring = make_task(class_weights="balanced", ignore_index=-1)
    ignoring.receive_data(with_labels(np.append(labels, [-1, -1])))
    assert_close(ignoring.class_weights, task.class_weights)


@pytest.mark.parametrize(
    ("labels", "message"),
    [(None, "known before it is read"), (np.array([0, 2]), "class 1 has no training sample")],
)
def test_balanced_weights_need_the_counts(labels: np.ndarray | None, message: str) -> None:
    make_task().receive_data(with_labels(labels))
    with pytest.raises(ConfigError, match=message):
        make_task(class_weights="balanced").receive_data(with_labels(labels))


def test_unknown_labels_do_not_count() -> None:
    logits, targets = torch.randn(6, 4), torch.randint(-1, 2, (6, 4))
    outcome = make_task(multi_label=True, ignore_index=-1)(Batch(logits, targets))
    known = targets >= 0
    reference = F.binary_cross_entropy_with_logits(logits[known], targets[known].float())
    assert_close(outcome.total_loss(), reference)
    assert outcome.measurements.keys() == {"accuracy"}
    assert int(outcome.num_targets) == int(known.sum())


def test_targets_that_are_no_class_indices_are_refused() -> None:
    logits: Any = torch.zeros(2, 3)
    refusal = r"^data: gives a list as the targets .*; give .* data\.target=<field>$"
    with pytest.raises(ConfigError, match=refusal):
        make_task()(Batch(logits, []))
    refusal = r"has torch.float32 targets .* class indices are integers of shape \[\]"
    with pytest.raises(ConfigError, match=refusal):
        make_task()(Batch(logits, torch.zeros(2)))


@pytest.mark.parametrize(("index", "remedy"), [(3, "4 outputs or more"), (-1, "task.ignore_index")])
def test_a_class_without_an_output_is_named(index: int, remedy: str) -> None:
    message = f"^model: has no output for the class {index} of a sample; .*give {remedy}"
    with pytest.raises(ConfigError, match=message), explain_unknown_class():
        make_task()(Batch(torch.zeros(2, 3), torch.tensor([0, index])))
    with pytest.raises(IndexError, match=r"^other$"), explain_unknown_class():
        raise IndexError("other")


def test_smoothing_beside_another_loss_is_said_to_do_nothing(logged_warnings: Any) -> None:
    Classification(nn.Identity(), label_smoothing=0.1, loss=nn.MultiMarginLoss(), metrics={})
    assert ["label_smoothing and class_weights do nothing" in text for text in logged_warnings()] == [True]
