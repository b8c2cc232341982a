"""Mixup and CutMix equal timm's; their random numbers depend on seed, update and micro-batch."""

from typing import Any

import numpy as np
import pytest
import torch
from marks import slow_but
from run_folders import assert_same_state, rows, weights
from timm.data.mixup import Mixup
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from training_runs import Train

from hydrant import seeding
from hydrant.batch import Batch
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.instantiate import instantiate
from hydrant.data import NoMixing

SHORT = ("tracker=local", "model=convnet", "model.widths=[4,8]", "duration=4", "log_every=1", "save_every=4")


def batch(size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(0)
    return Batch(torch.rand(size, 1, 8, 8, generator=generator), torch.arange(size) % 10)


def mixing(*words: str, size: int = 8) -> Any:
    return instantiate(check(compose(list(words))), "mixing", 10, size)


@pytest.mark.parametrize("option", slow_but(("mixup_cutmix",), ["mixup", "cutmix", "mixup_cutmix"]))
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


class Copies(TorchDispatchMode):
    """Records the copies from the host to CUDA: whether the host does not wait, as from pinned memory it need not."""

    def __init__(self, pinned: list[torch.Tensor]) -> None:
        super().__init__()
        self.pinned = pinned
        self.without_wait: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and (args[0].device.type, result.device.type) == (
            "cpu",
            "cuda",
        ):
            is_pinned = any(tensor is args[0] for tensor in self.pinned)
            self.without_wait.append(is_pinned and kwargs.get("non_blocking", False))
        return result


@pytest.mark.parametrize(("mode", "num_copies"), [("batch", 0), ("pair", 1), ("elem", 1)])
def test_mixing_does_not_wait_for_device(mode: str, num_copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    mix = mixing("mixing=mixup_cutmix", f"mixing.mode={mode}")
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs, targets = torch.empty(8, 1, 8, 8, device="cuda"), torch.zeros(8, device="cuda").long()
        with Copies(pinned) as copies:
            mixed = mix(Batch(inputs, targets), 0, 0, 0)
    assert mixed.targets.device.type == "cuda"
    assert copies.without_wait == [True] * num_copies


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
