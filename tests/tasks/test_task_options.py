"""Every task trains with any division into micro-batches, and knows its best metric."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from marks import of_extension, slow, slow_but
from run_folders import assert_close_rows, rows, summary, weights
from torch import Tensor
from training_runs import Train, UserModule, whole_and_resumed

NUM_SAMPLES = 16
TINY = ("data=tensors", "data.train=samples.pt", "data.val=samples.pt", "tracker=local", "global_batch_size=8",
        "eval_batch_size=6", "duration=2", "log_every=1", "eval_every=1", "optimizer=sgd")  # fmt: skip
MLP = ("data.input_shape=[1,8,8]", "data.num_classes=3", "model.hidden=[]", "model.dropout=0")
NUMBERS = ("data.input_shape=[1,8,8]", "model.hidden=[]", "model.dropout=0")
OWN = ("~model.hidden", "~model.dropout", "allow_targets=[task_parts]", "data.num_classes=3")

PARTS = '''
import torch
from torch import nn

from hydrant.batch import Outcome
from hydrant.tasks import Task


class Pixels(nn.Conv2d):
    def __init__(self, *, input_shape, num_classes):
        super().__init__(1, num_classes, 3, padding=1)


class Tokens(nn.Linear):
    """Each row of an image is a token: logits (B, 8, C)."""

    def __init__(self, *, input_shape, num_classes):
        super().__init__(8, num_classes)

    def forward(self, inputs):
        return super().forward(inputs[:, 0])


class Masked(Task):
    """The inputs and the targets are dicts, and only the rows that a mask counts are targets."""

    def forward(self, batch):
        mask = batch.targets["mask"]
        errors = (self.model(batch.inputs["image"]) - batch.targets["values"][..., None]).square().mean(-1)
        num_targets = mask.sum()
        loss = errors.where(mask, 0).sum() / num_targets.clamp(min=1)
        return Outcome({"error": loss}, {}, errors.detach(), num_targets)
'''


def images() -> Tensor:
    return torch.rand(NUM_SAMPLES, 1, 8, 8)


def save(inputs: Any, targets: Any) -> None:
    torch.save({"inputs": inputs, "targets": targets}, "samples.pt")


def classes() -> None:
    save(images(), torch.arange(NUM_SAMPLES) % 3)


def from_one() -> None:
    save(images(), torch.arange(NUM_SAMPLES) % 2 + 1)


def labels() -> None:
    save(images(), torch.randint(2, (NUM_SAMPLES, 3)))


def pixels() -> None:
    targets = torch.randint(3, (NUM_SAMPLES, 8, 8), dtype=torch.uint8)
    targets[:5] = 255  # the first micro-batches have no target
    save(images(), targets)


def tokens() -> None:
    save(images(), torch.where(torch.rand(NUM_SAMPLES, 8) < 0.4, -100, torch.randint(3, (NUM_SAMPLES, 8))))


def numbers() -> None:
    save(images(), torch.randn(NUM_SAMPLES))


def pairs() -> None:
    save(images(), torch.randn(NUM_SAMPLES, 2))


def dicts() -> None:
    values = {"values": torch.randn(NUM_SAMPLES, 8), "mask": torch.rand(NUM_SAMPLES, 8) < 0.5}
    save({"image": images()}, values)


CASES: dict[str, Any] = {
    "classes": (classes, MLP, "val/accuracy"),
    "weights": (classes, (*MLP, "task.class_weights=[0,2,5]", "task.label_smoothing=0.1"), "val/accuracy"),
    "own_loss": (classes, (*MLP, "+task.loss={_target_: torch.nn.MultiMarginLoss}"), "val/accuracy"),
    "labels": (labels, (*MLP, "task.multi_label=true", "task.class_weights=[1,2,5]"), "val/accuracy"),
    "pixels": (pixels, (*OWN, "model._target_=task_parts.Pixels", "task.ignore_index=255"), "val/accuracy"),
    "tokens": (
        tokens,
        (*OWN, "model._target_=task_parts.Tokens", "task.ignore_index=-100", "task.class_dim=-1"),
        "val/accuracy",
    ),
    "numbers": (numbers, (*NUMBERS, "task=regression"), "val/loss"),
    "pairs": (pairs, (*NUMBERS, "task=regression", "task.loss=huber", "model.num_classes=2"), "val/loss"),
    "any_loss": (
        numbers,
        (*NUMBERS, "task=supervised", "task.loss._target_=torch.nn.SmoothL1Loss"),
        "val/loss",
    ),
    "dicts task=two_models": (
        dicts,
        (*OWN, "model._target_=task_parts.Tokens", "task=two_models", "task._target_=task_parts.Masked"),
        "val/loss",
    ),
    "task=two_models": (classes, (*MLP[:2], "model=two", "task=two_models"), "val/accuracy"),
}
TWO_MODELS = [case for case in CASES if "two_models" in case]
FAST = ("classes", "weights", "own_loss", "numbers")


@pytest.mark.parametrize(
    "case", [*of_extension(*TWO_MODELS), *slow_but(FAST, sorted(CASES.keys() - TWO_MODELS))]
)
def test_a_task_trains_and_chooses(case: str, train: Train, user_module: UserModule) -> None:
    make, words, best = CASES[case]
    user_module("task_parts", PARTS)
    torch.manual_seed(0)
    make()
    run = train(*TINY, *words, name="run")
    values = [row[best] for row in rows(run) if best in row and row["num_updates"]]
    chosen = summary(run)["best"]
    assert (chosen["metric"], chosen["value"]) == (best, (max if best == "val/accuracy" else min)(values))
    if case != "task=two_models":  # its random layers depend on the micro-batch
        divided = train(*TINY, *words, "micro_batch_size=2", name="divided")
        for one, other in zip(weights(run).values(), weights(divided).values(), strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
        assert_close_rows(run, divided, rel=1e-4)


@pytest.mark.parametrize("case", ["numbers", *slow("pixels")])
def test_a_resume_between_two_log_points_is_exact(
    case: str, train: Train, user_module: UserModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, words, _ = CASES[case]
    user_module("task_parts", PARTS)
    make()
    words = (*TINY, *words, "duration=6", "log_every=4", "eval_every=3", "save_every=null")
    whole, resumed = whole_and_resumed(train, monkeypatch, words, stop_at=3)
    assert rows(whole) == rows(resumed)


@pytest.mark.parametrize(
    ("make", "words", "key", "message"),
    [
        (labels, MLP, "task", r"of shape \[3\] for .* integers of shape \[\]; .*task.multi_label=true"),
        (from_one, (*MLP, "model.num_classes=2"), "model", "has no output for the class 2 of .*; subtract 1 from"),
        (tokens, (*OWN, "model._target_=task_parts.Tokens"), "task", "task.class_dim=1.; class indices"),
        (classes, (*NUMBERS, "task=classification"), "model",
         "need two or more; give 2 outputs or more by model.num_classes or"),
        (classes, (*MLP, "task=regression"), "model",
         "gives .3. for a sample, .* give 1 output.s. by model.num_classes or"),
        (classes, (*MLP, "task.class_weights=[1,2]"), "task", "all 3 classes"),
        (numbers, (*NUMBERS, "task=supervised", "task.loss._target_=torch.nn.L1Loss", "+task.loss.reduction=none"),
         "task.loss.reduction", "none is no mean"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_the_run(
    make: Any, words: tuple[str, ...], key: str, message: str, train: Train, user_module: UserModule,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    user_module("task_parts", PARTS)
    make()
    folder: Path = train(*TINY, *words, status=2)
    assert not folder.exists()
    assert re.search(f"error: {re.escape(key)}: .*{message}", capsys.readouterr().err)
