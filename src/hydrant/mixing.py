"""Training samples mixed with each other, and their targets with them. No mixing is the null object."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch

from hydrant import seeding
from hydrant.batch import Batch
from hydrant.errors import ConfigError

PRELOAD = ("timm.data.mixup",)


class Mixing(Protocol):
    """Built as `mixing(num_classes, micro_batch_size)`."""

    def __call__(self, batch: Batch, *position: int) -> Batch:
        """The mixed micro-batch; what is random is a function of `position` (seed, update, micro-batch)."""
        ...


class NoMixing:
    """Samples stay as they are."""

    def __init__(self, num_classes: int, micro_batch_size: int) -> None:
        del num_classes, micro_batch_size

    def __call__(self, batch: Batch, *position: int) -> Batch:
        del position
        return batch


class MixupCutmix:
    """Mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019): timm's `Mixup`, with a random stream of its own.

    Each sample is mixed with the one at the mirrored place of its micro-batch. Targets become shares of the classes,
    (B, num_classes) float32; label smoothing stays the task's.

    Args:
        mixup_alpha, cutmix_alpha: of the Beta distribution of the shares; 0 switches that kind off.
        cutmix_minmax: least and greatest side of the box as shares of the image's; then CutMix is on, without alpha.
        prob: how often a batch (pair, sample) is mixed at all, 0..1.
        switch_prob: how often by CutMix, where both are on, 0..1.
        mode: what draws its own share: the `batch`, each `pair` or each sample (`elem`).
        correct_lam: recompute the share from the box that fits into the image.
    """

    def __init__(
        self,
        num_classes: int,
        micro_batch_size: int,
        *,
        mixup_alpha: float,
        cutmix_alpha: float,
        cutmix_minmax: list[float] | None,
        prob: float,
        switch_prob: float,
        mode: Literal["batch", "pair", "elem"],
        correct_lam: bool,
    ) -> None:
        from timm.data.mixup import Mixup

        for key, value in {"mixup_alpha": mixup_alpha, "cutmix_alpha": cutmix_alpha}.items():
            if value < 0:
                raise ConfigError(f"mixing.{key}", f"needs a number from 0 on, not {value}")
        for key, value in {"prob": prob, "switch_prob": switch_prob}.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"mixing.{key}", f"needs a number from 0 to 1, not {value}")
        if cutmix_minmax is not None and not _are_shares(cutmix_minmax):
            raise ConfigError(
                "mixing.cutmix_minmax", f"needs two shares, the least first; not {cutmix_minmax}"
            )
        if not (mixup_alpha or cutmix_alpha or cutmix_minmax):
            raise ConfigError(
                "mixing.mixup_alpha", "nothing is mixed where both alphas are 0; use mixing=none"
            )
        if micro_batch_size % 2:
            told = f"samples are mixed in pairs, and {micro_batch_size} is odd; give an even number"
            raise ConfigError("micro_batch_size", told)
        self._mixup = Mixup(
            mixup_alpha, cutmix_alpha, cutmix_minmax, prob, switch_prob, mode, correct_lam, 0.0, num_classes
        )

    def __call__(self, batch: Batch, *position: int) -> Batch:
        with seeding.numpy_stream(seeding.MIXING, *position):
            # timm mixes in place, and the data may keep the batch for another try
            mixed: tuple[Any, Any] = self._mixup(batch.inputs.clone(), batch.targets)
        return Batch(mixed[0], mixed[1].to(torch.float32))


def _are_shares(sides: list[float]) -> bool:
    return len(sides) == 2 and 0 <= sides[0] < sides[1] <= 1
