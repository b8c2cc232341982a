"""Mixup and CutMix equal timm's; their random numbers depend on seed, update and micro-batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from run_folders import assert_same_state, rows, weights
from timm.data.mixup import Mixup
from training_runs import Train

from hydrant import seeding
from hydrant.batch import Batch
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.instantiate import instantiate
from hydrant.data.mixup import NoMixing

SHORT = ("tracker=local", "model=convnet", "model.widths=[4,8]", "duration=4", "log_every=1", "save_every=4")


def batch(size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(0)
    return Batch(torch.rand(size, 1, 8, 8, generator=generator), torch.arange(size) % 10)


def mixing(*words: str, size: int = 8) -> Any:
    return instantiate(check(compose(list(words))), "mixing", 10, size)


@pytest.mark.parametrize("option", ["mixup", "cutmix", "mixup_cutmix"])
@pytest.mark.parametrize(
    "words", [(), ("mode=pair", "prob=0.7"), ("mode=elem",), ("cutmix_minmax=[0.2,0.8]",)]
)
def test_equals_timm_s(option: str, words: tuple[str, ...]) -> None:
    arguments = [f"mixing={option}", *(f"mixing.{word}" for word in words)]
    node = {k: v for k, v in check(compose(arguments))["mixing"].items() if not k.startswith("_")}
    reference = Mixup(**node, label_smoothing=0.0, num_classes=10)
    mix, original = mixing(*arguments), batch()
    for update in range(20):
        state = np.random.get_state()[1].copy()
        mixed = mix(original, 3, update, 0)
        assert (np.random.get_state()[1] == state).all()  # the global generator is unchanged
        with seeding.numpy_stream(seeding.MIXING, 3, update, 0):
            inputs, targets = reference(*batch())
        assert torch.equal(mixed.inputs, inputs)
        assert torch.equal(mixed.targets, targets)
        torch.testing.assert_close(mixed.targets.sum(dim=1), torch.ones(8))
        assert_same_state(tuple(original), tuple(batch()))  # it is used again after a skipped update


def test_random_numbers_are_a_function_of_the_position() -> None:
    mix = mixing("mixing=mixup")
    again = [mix(batch(), seed, update, idx).targets for seed, update, idx in ((0, 5, 0), (0, 5, 0))]
    assert torch.equal(*again)
    others = [mix(batch(), *position).targets for position in ((1, 5, 0), (0, 6, 0), (0, 5, 1))]
    assert not any(torch.equal(again[0], other) for other in others)


def test_no_mixing_returns_the_batch_itself() -> None:
    original = batch()
    assert NoMixing(10, 7)(original, 0, 0, 0) is original


def test_only_training_is_mixed_and_smoothing_equals_timm_s(train: Train) -> None:
    plain = train(*SHORT, "optimizer.lr=1e-30", "task.label_smoothing=0.1", name="plain")
    mixed = train(*SHORT, "optimizer.lr=1e-30", "task.label_smoothing=0.1", "mixing=mixup", name="mixed")
    one, other = rows(plain)[-1], rows(mixed)[-1]
    # The statistics of batch norms differ a little.
    assert one["val/loss"] == pytest.approx(other["val/loss"], rel=1e-3)
    assert one["train/loss"] != other["train/loss"]
    logits, targets = torch.randn(8, 10), batch().targets
    with seeding.numpy_stream(1):
        smoothed = Mixup(0.8, label_smoothing=0.1, num_classes=10)(batch().inputs, targets)[1]
    with seeding.numpy_stream(1):
        unsmoothed = Mixup(0.8, label_smoothing=0.0, num_classes=10)(batch().inputs, targets)[1]
    mix = torch.nn.functional.cross_entropy(logits, unsmoothed, label_smoothing=0.1)
    torch.testing.assert_close(mix, torch.nn.functional.cross_entropy(logits, smoothed))


def test_evaluations_do_not_change_the_mixing(train: Train) -> None:
    words = (*SHORT, "mixing=mixup_cutmix", "micro_batch_size=32")
    often = train(*words, "eval_every=1", name="often")
    seldom = train(*words, "eval_every=4", name="seldom")
    assert_same_state(weights(often), weights(seldom))
