"""Data sets of images, in one folder per class or published ones that are downloaded; their mixing, by timm."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch
from hydrant.data.base import to_device
from hydrant.errors import ConfigError
from hydrant.extensions.images.archive import cifar as cifar
from hydrant.extensions.images.archive import mnist as mnist
from hydrant.extensions.images.folder import ImageAugment as ImageAugment
from hydrant.extensions.images.folder import image_folder as image_folder
from hydrant.files.plain_values import NotNegative, Ratio

PRELOAD = {"MixupCutmix": ("timm.data.mixup",)}


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

    needs_classes = True

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
