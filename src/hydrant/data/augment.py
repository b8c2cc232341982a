"""Random augmentation of a batch of images on the device. Each image has its own random numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from hydrant import seeding
from hydrant.errors import ConfigError


@dataclass(frozen=True)
class ShiftFlip:
    """Shift by up to `max_shift` pixels in each direction, fill with zeros, and mirror half the images if `flip`.

    This equals padding by `max_shift`, `RandomCrop` and `RandomHorizontalFlip`: the usual augmentation of CIFAR
    (He et al., 2016, section 4.2, with `max_shift=4`).
    """

    max_shift: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if self.max_shift < 0:
            raise ConfigError("data.augment.max_shift", f"{self.max_shift} is negative; 0 means no shift")

    def __bool__(self) -> bool:
        return bool(self.max_shift or self.flip)

    def __call__(self, images: Tensor, draws: Tensor, seed: int) -> Tensor:
        """Return the augmented images, same shape and dtype.

        Args:
            images: (B, C, H, W).
            draws: (B,) int64, see `hydrant.data.base`; with `seed` they determine the random numbers.
        """
        if self.max_shift:
            height, width = images.shape[-2:]
            span = 2 * self.max_shift + 1
            rows, columns = ((seeding.uniform(seed, draws, lane) * span).long() for lane in (0, 1))
            padded = pad(images, [self.max_shift] * 4)
            windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (B, C, span, span, H, W), a view
            images = windows[torch.arange(len(images), device=images.device), :, rows, columns]
        if self.flip:
            mirror = seeding.uniform(seed, draws, 2) < 0.5
            images = torch.where(mirror.view(-1, 1, 1, 1), images.flip(-1), images)
        return images
