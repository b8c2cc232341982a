"""Random augmentation of images on the device, and mixing of samples and their targets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from hydrant import seeding
from hydrant.batch import Batch
from hydrant.data.base import to_device
from hydrant.errors import ConfigError
from hydrant.files.plain_values import NotNegative, NotNegativeInt, Ratio
from hydrant.seeding import uniform


@dataclass(frozen=True)
class ShiftFlip:
    """Shift by up to `max_shift` pixels in each direction, fill with zeros, and mirror half the images if `flip`.

    This equals padding by `max_shift`, `RandomCrop` and `RandomHorizontalFlip`: the usual augmentation of CIFAR
    (He et al., 2016, section 4.2, with `max_shift=4`).
    """

    max_shift: NotNegativeInt = 0
    flip: bool = False

    def __bool__(self) -> bool:
        return bool(self.max_shift or self.flip)

    def __call__(self, images: Tensor, draws: Tensor, seed: int) -> Tensor:
        """Return the augmented images, same shape and dtype.

        Args:
            images: (B, C, H, W).
            draws: (B,) int64, see `hydrant.data.base`; with `seed` they determine the random numbers.
        """
        if self.max_shift:
            images = shifted(pad(images, [self.max_shift] * 4), self.max_shift, draws, seed)
        if self.flip:
            images = torch.where((uniform(seed, draws, 2) < 0.5).view(-1, 1, 1, 1), images.flip(-1), images)
        return images


def shifted(padded: Tensor, max_shift: int, draws: Tensor, seed: int) -> Tensor:
    """Return a window of each padded image, (B, C, H, W), at a random place."""
    span = 2 * max_shift + 1
    rows, columns = ((uniform(seed, draws, lane) * span).long() for lane in (0, 1))
    height, width = (side - 2 * max_shift for side in padded.shape[-2:])
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (B, C, span, span, H, W), a view
    return windows[torch.arange(len(padded), device=padded.device), :, rows, columns]


PRELOAD = {"MixupCutmix": ("timm.data.mixup",)}


class Mixing(Protocol):
    """Mixes the samples of a micro-batch. Built as `mixing(num_classes, micro_batch_size)`."""

    def __call__(self, batch: Batch, *position: int) -> Batch:
        """Return the mixed micro-batch. Random numbers are a function of `position` (seed, update, micro-batch)."""
        ...


class NoMixing:
    """Leaves samples as they are."""

    def __init__(self, num_classes: int, micro_batch_size: int) -> None:
        del num_classes, micro_batch_size

    def __call__(self, batch: Batch, *position: int) -> Batch:
        del position
        return batch


class MixupCutmix:
    """Mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019): timm's `Mixup` with a separate random stream.

    Sample i is mixed with sample B - 1 - i of its micro-batch. Targets become class probabilities, (B, num_classes)
    float32. Label smoothing is left to the task.

    Args:
        mixup_alpha, cutmix_alpha: parameter of the Beta distribution of the mixing ratio; 0 disables that kind.
        cutmix_minmax: least and greatest side of the box, as ratios of the image's side; replaces `cutmix_alpha`.
        prob: probability of mixing at all, 0..1.
        switch_prob: probability of CutMix instead of mixup, if both are enabled, 0..1.
        mode: one ratio is drawn for the whole micro-batch (`batch`), each pair (`pair`) or each sample (`elem`).
        correct_lam: recompute the ratio from the part of the box inside the image.

    Raises:
        ConfigError: the data have no classes, or a micro-batch has an odd number of samples.
    """

    def __init__(
        self,
        num_classes: int | None,
        micro_batch_size: int,
        *,
        mixup_alpha: NotNegative,
        cutmix_alpha: NotNegative,
        cutmix_minmax: tuple[Ratio, Ratio] | None,
        prob: Ratio,
        switch_prob: Ratio,
        mode: Literal["batch", "pair", "elem"],
        correct_lam: bool,
    ) -> None:
        from timm.data.mixup import Mixup

        if num_classes is None:
            raise ConfigError("mixing", "mixes classes, and these data have none", remedy="use mixing=none")
        if micro_batch_size % 2:
            message = f"samples are mixed in pairs, but {micro_batch_size} is odd"
            raise ConfigError("micro_batch_size", message, remedy="give an even number")
        mixup: Any = Mixup(
            mixup_alpha, cutmix_alpha, cutmix_minmax, prob, switch_prob, mode, correct_lam, 0.0, num_classes
        )
        mixup._mix_elem, mixup._mix_pair = _without_wait(mixup._mix_elem), _without_wait(mixup._mix_pair)
        self._mixup = mixup

    def __call__(self, batch: Batch, *position: int) -> Batch:
        with seeding.numpy_stream(seeding.MIXING, *position):
            # timm mixes in place, and an update that is tried again needs the original batch
            mixed: tuple[Any, Any] = self._mixup(batch.inputs.clone(), batch.targets)
        return Batch(mixed[0], mixed[1].to(torch.float32))


class _RatiosOnHost:
    """The inputs of a micro-batch. timm makes the ratios of pairs and samples on the host, because it takes the host
    for their device.

    On the device of the inputs, it would wait for the work that is queued there.
    """

    device = torch.device("cpu")

    def __init__(self, inputs: Tensor) -> None:
        self._inputs = inputs
        self.dtype = inputs.dtype

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> Tensor:
        return self._inputs[index]

    def __setitem__(self, index: int, sample: Tensor) -> None:
        self._inputs[index] = sample

    def clone(self) -> Tensor:
        return self._inputs.clone()


def _without_wait(mix: Callable[[Any], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the function of timm that mixes inputs in place and returns ratios, without a wait for the device."""
    return lambda inputs: to_device(mix(_RatiosOnHost(inputs)), inputs.device)
