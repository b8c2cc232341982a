"""Losses of torch: the mean of an update is the same however its targets are divided into micro-batches."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from marks import slow
from run_folders import rows, weights
from torch import Tensor, nn
from training_runs import Train, train_in_child

from hydrant.batch import Batch, mean_loss
from hydrant.errors import ConfigError
from hydrant.tasks import Classification, Regression, Supervised
from hydrant.tasks.base import MeanOfValid, checked_loss

NUM_CLASSES = 3
WEIGHT = torch.tensor([1.0, 2.0, 5.0])
LOGITS = torch.randn(12, NUM_CLASSES, generator=torch.Generator().manual_seed(0))
CLASSES = torch.tensor([0, 1, -100, 2, -100, 1, 0, -100, -100, -100, 2, 1])  # of a part of four, one counts
LABELS = (torch.arange(36).view(12, 3) % 5 < 2).float()
CASES: dict[str, tuple[Callable[[], Any], Tensor, Tensor]] = {
    "cross entropy": (nn.CrossEntropyLoss, LOGITS, CLASSES),
    "ignored class": (partial(nn.CrossEntropyLoss, ignore_index=1), LOGITS, CLASSES.clamp(min=0)),
    "smoothed": (partial(nn.CrossEntropyLoss, label_smoothing=0.2), LOGITS, CLASSES),
    "pixels": (nn.CrossEntropyLoss, LOGITS.view(4, 3, 3).mT.contiguous(), CLASSES.view(4, 3)),
    "probabilities": (nn.CrossEntropyLoss, LOGITS, LABELS.softmax(1)),
    "nll": (partial(nn.NLLLoss, ignore_index=-100), LOGITS.log_softmax(1), CLASSES),
    "labels": (partial(nn.BCEWithLogitsLoss, weight=WEIGHT, pos_weight=WEIGHT), LOGITS, LABELS),
    "probabilities of labels": (partial(nn.BCELoss, weight=WEIGHT), LOGITS.sigmoid(), LABELS),
    "margin": (partial(nn.MultiMarginLoss, weight=WEIGHT), LOGITS, CLASSES.clamp(min=0)),
    "label margin": (partial(nn.MultiLabelSoftMarginLoss, weight=WEIGHT), LOGITS, LABELS),
    "batchmean": (partial(nn.KLDivLoss, reduction="batchmean"), LOGITS.log_softmax(1), LABELS.softmax(1)),
    "function": (lambda: partial(F.cross_entropy, ignore_index=1), LOGITS, CLASSES.clamp(min=0)),
}


class Weighted(nn.CrossEntropyLoss):
    """A loss of the user's that only changes an argument of torch's."""

    def __init__(self) -> None:
        super().__init__(weight=WEIGHT)


def divided(task: Any, outputs: Tensor, targets: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the loss of an update in micro-batches, and its gradient by the outputs."""
    leaf = outputs.clone().requires_grad_()
    outcomes = [
        task.assess(part, Batch(part, aims))
        for part, aims in zip(leaf.split(size), targets.split(size), strict=True)
    ]
    total = sum((o.total_loss() * o.num_targets for o in outcomes), torch.tensor(0.0))
    (total / sum(o.num_targets for o in outcomes)).backward()
    assert leaf.grad is not None
    return mean_loss(outcomes, lambda sums: sums), leaf.grad


@pytest.mark.parametrize("size", [1, 2, 3, 12])
@pytest.mark.parametrize("case", CASES)
def test_the_mean_is_torch_s_for_any_micro_batch(case: str, size: int) -> None:
    make, outputs, targets = CASES[case]
    leaf = outputs.clone().requires_grad_()
    expected = make()(leaf, targets)
    expected.backward()
    task = Supervised(nn.Identity(), loss=make(), metrics={})
    loss, gradient = divided(task, outputs, targets, min(size, len(outputs)))
    torch.testing.assert_close(loss, expected.double(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient, leaf.grad, rtol=1e-5, atol=1e-7)


def test_a_micro_batch_without_targets_is_zero() -> None:
    loss = checked_loss(nn.CrossEntropyLoss())
    leaf = LOGITS[:2].clone().requires_grad_()
    value = loss(leaf, torch.tensor([-100, -100]))
    value.backward()
    assert value.item() == 0
    assert leaf.grad is not None
    assert not leaf.grad.any()


def test_ignored_targets_are_not_counted_as_wrong() -> None:
    task = Classification(nn.Identity(), label_smoothing=0.0, loss=nn.CrossEntropyLoss(), metrics={})
    outcome = task.assess(LOGITS, Batch(LOGITS, CLASSES))
    counted = CLASSES >= 0
    assert int(outcome.num_targets) == int(counted.sum()) == 7
    right = (LOGITS.argmax(1) == CLASSES)[counted].float().mean()
    torch.testing.assert_close(outcome.measurements["accuracy"], right)
    torch.testing.assert_close(outcome.losses["loss"], F.cross_entropy(LOGITS, CLASSES))


@pytest.mark.parametrize("kind", ["CrossEntropyLoss", "NLLLoss", "subclass", "function"])
def test_weights_by_which_torch_divides_are_refused_with_the_key_to_write(kind: str) -> None:
    make = {"subclass": Weighted, "function": lambda: partial(F.nll_loss, weight=WEIGHT)}.get(kind)
    loss = make() if make else getattr(nn, kind)(weight=WEIGHT)
    message = r"^task\.loss\.weight: .*write task=classification task\.class_weights="
    with pytest.raises(ConfigError, match=message):
        checked_loss(loss)


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize(
    "kind", ["CrossEntropyLoss", "MSELoss", "BCEWithLogitsLoss", "KLDivLoss", "HuberLoss"]
)
def test_what_is_no_mean_is_refused(kind: str, reduction: str) -> None:
    with pytest.raises(ConfigError, match=rf"^task\.loss\.reduction: {reduction} is no mean"):
        Supervised(nn.Identity(), loss=getattr(nn, kind)(reduction=reduction), metrics={})


def test_a_function_of_torch_that_is_no_mean_is_refused() -> None:
    loss = partial(nn.functional.multi_margin_loss, reduction="sum")
    with pytest.raises(ConfigError, match=r"^task\.loss\.reduction: sum is no mean"):
        Supervised(nn.Identity(), loss=loss, metrics={})


def test_every_loss_of_torch_with_such_arguments_is_known() -> None:
    """A new one of torch is added to the cases here, or refused."""
    kinds = [getattr(nn, name) for name in dir(nn) if name.endswith("Loss")]
    named = {kind: set(inspect.signature(kind).parameters) for kind in kinds}
    ignores = {kind.__name__ for kind, names in named.items() if "ignore_index" in names}
    assert ignores <= {"CrossEntropyLoss", "NLLLoss", "LinearCrossEntropyLoss"}
    weighs = {kind.__name__ for kind, names in named.items() if {"weight", "pos_weight"} & names} - ignores
    assert weighs == {"BCELoss", "BCEWithLogitsLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss"}
    for name in ignores & {"LinearCrossEntropyLoss"}:
        assert isinstance(checked_loss(getattr(nn, name)(4, 3, ignore_index=1)), MeanOfValid)


@pytest.mark.parametrize("task", ["classification", *slow("supervised")])
@pytest.mark.parametrize(
    "parts",
    [
        ("micro_batch_size=1", "eval_batch_size=3"),
        pytest.param(("parallel.num_processes=2", "micro_batch_size=2"), marks=pytest.mark.slow),
    ],
    ids=["batches", "ranks"],
)
def test_a_run_does_not_depend_on_its_parts(
    task: str, parts: tuple[str, ...], train: Train, workdir: Path
) -> None:
    """Neither on the sizes of micro-batches and evaluation batches nor on the number of ranks."""
    generator = np.random.default_rng(0)
    inputs, targets = generator.normal(size=(64, 4)).astype(np.float32), generator.integers(0, 3, 64)
    targets[generator.permutation(64)[:40]] = -100
    for split in ("train", "val"):
        np.savez(workdir / f"{split}.npz", inputs=inputs, targets=targets)
    files = (f"data.train={workdir}/train.npz", f"data.val={workdir}/val.npz")
    words = ("data=tensors", *files, "data.num_classes=3", "data.input_shape=[4]", "model.hidden=[8]",
             "global_batch_size=16", "duration=4", "tracker=local", "eval_every=2", f"task={task}", "optimizer=sgd",
             "model.dropout=0", "+task.loss={_target_: torch.nn.CrossEntropyLoss}")  # fmt: skip
    whole = train(*words, name="whole")
    in_ranks = parts[0].startswith("parallel")
    divided = (
        train_in_child(workdir, "divided", *words, *parts)
        if in_ranks
        else train(*words, *parts, name="divided")
    )
    for one, other in zip(rows(whole), rows(divided), strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    for name, value in weights(whole).items():
        torch.testing.assert_close(value, weights(divided)[name])


@pytest.mark.parametrize("make_task", [Supervised, partial(Regression, delta=1.0)])
def test_a_loss_of_the_user_gets_what_the_model_returns(make_task: Any) -> None:
    """Outputs (B, 1) lose their last dimension for torch's losses alone, which would broadcast targets (B,)."""
    outputs, targets = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0])
    shapes = list[torch.Size]()

    def of_column(outputs: Tensor, targets: Tensor) -> Tensor:
        shapes.append(outputs.shape)
        return F.mse_loss(outputs[:, 0], targets)

    for loss in (of_column, partial(of_column), nn.MSELoss(), F.mse_loss, partial(F.mse_loss)):
        outcome = make_task(nn.Identity(), loss=loss, metrics={})(Batch(outputs, targets))
        assert outcome.total_loss() == 2
        assert outcome.predictions.shape == (2,)
    assert shapes == [(2, 1), (2, 1)]
