"""The network of airbench94, its augmentation, the hook that sets its first weights, and the average of its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import is_inexact, widened
from hydrant.data.base import ON_HOST
from hydrant.data.vision import shifted
from hydrant.errors import ConfigError
from hydrant.files.plain_values import NotNegativeInt, PositiveInt, Ratio
from hydrant.optimizers.ema import each_once
from hydrant.seeding import uniform
from hydrant.training.trainer import Plan, Trainer

_WHITENING_EPS = 5e-4

Views = Literal["image", "mirror", "mirror_translate"]


class AirbenchNet(nn.Module):
    """A whitening convolution, three groups of two convolutions, and a readout without bias; Jordan, 2024.

    The first convolution, 2 x 2, gives 2 x 4 C channels: `whiten` sets its weights, which do not train, and
    `hook=whitening` calls it. The convolutions of the groups begin as the identity of their first channels. Batch norms
    train no gains and keep 0.6 of their statistics in an update.

    In evaluation mode, the logits are averages over views of an image. `mirror`: the image and its mirror image.
    `mirror_translate`: half of that, and a quarter of the same average for each of two images shifted by one pixel,
    up-left and down-right.

    Source: Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024 (arXiv 2404.00498), sections 3.1 to 3.3 and
    3.5; github.com/KellerJordan/cifar10-airbench.

    Args:
        input_shape: (C, H, W) of one image, with sides of at least 9 pixels.
        num_classes: size of the output.
        widths: channels of the three groups.
        scale: factor of the logits.
        views: views of an image in evaluations: `image` (itself), `mirror`, or `mirror_translate` (six).

    Raises:
        ConfigError: the data are no images of this size with classes.
    """

    def __init__(
        self,
        *,
        input_shape: Sequence[int],
        num_classes: int | None,
        widths: Sequence[int],
        scale: float,
        views: Views,
    ) -> None:
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < 9 or num_classes is None:
            message = "airbench needs images (C, H, W) of at least 9 x 9 pixels with classes"
            raise ConfigError("model", f"{message}, not data.input_shape={list(input_shape)}")
        self._scale, self._views = scale, views
        num_channels = 8 * input_shape[0]
        self.whitening = nn.Conv2d(input_shape[0], num_channels, 2)
        nn.init.zeros_(self.whitening.bias)
        self.whitening.weight.requires_grad_(False)
        sides = zip([num_channels, *widths], widths, strict=False)
        self.groups = nn.Sequential(*(_Group(*channels) for channels in sides))
        self.readout = nn.Linear(widths[-1], num_classes, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` (B, C, H, W) -> logits (B, num_classes)."""
        if self.training or self._views == "image":
            return self._logits(inputs)
        logits = self._mirrored(inputs)
        if self._views == "mirror":
            return logits
        height, width = inputs.shape[-2:]
        padded = F.pad(inputs, (1, 1, 1, 1), mode="reflect")
        shifted = (padded[..., :height, :width], padded[..., 2:, 2:])
        return 0.5 * logits + 0.25 * sum(self._mirrored(view) for view in shifted)

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Set the first weights so that they whiten the patches of these images.

        They are the eigenvectors of the patches' covariance, divided by the roots of the eigenvalues, and the same
        with the other sign.

        Args:
            images: (N, C, H, W), as the model gets them.
        """
        weight = self.whitening.weight
        # On the host in float64, so that all machines give the same eigenvectors.
        patches = F.unfold(images.double().cpu(), 2).transpose(1, 2).flatten(0, 1)  # (N x places, 4 C)
        eigenvalues, eigenvectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (eigenvectors / (eigenvalues + _WHITENING_EPS).sqrt()).T.flip(0)  # the largest first
        weight.copy_(torch.cat([filters, -filters]).view_as(weight))

    def _mirrored(self, images: Tensor) -> Tensor:
        return 0.5 * (self._logits(images) + self._logits(images.flip(-1)))

    def _logits(self, images: Tensor) -> Tensor:
        x = self.groups(F.gelu(self.whitening(images)))
        return self._scale * self.readout(x.amax(dim=(2, 3)))


class _Group(nn.Module):
    """Two convolutions with batch norm; the first is followed by max pooling, which halves the image."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (
            nn.Conv2d(channels, fan_out, 3, padding=1, bias=False) for channels in (fan_in, fan_out)
        )
        for conv in (self.conv1, self.conv2):
            nn.init.dirac_(conv.weight.data[: conv.in_channels])
        self.norm1, self.norm2 = (nn.BatchNorm2d(fan_out, eps=1e-12, momentum=0.4) for _ in range(2))
        for norm in (self.norm1, self.norm2):
            norm.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` (B, C, H, W) -> (B, fan_out, H / 2, W / 2)."""
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class Whitening:
    """A hook: calls `model.whiten(images)` with the first training images, normalized, when a run begins anew.

    Args:
        num_samples: training images whose patches are whitened.
    """

    def __init__(self, *, num_samples: int) -> None:
        self._num_samples = num_samples

    def on_start(self, trainer: Trainer) -> None:
        """Set the weights, unless the run resumes."""
        if trainer.state.num_updates == 0:
            images = trainer.plan.data.train.subset(range(self._num_samples))
            trainer.model.whiten(next(images.batches(ON_HOST, images.num_samples)).inputs)


class Lookahead:
    """Every few updates, sets the weights to their moving average, whose decay grows with the cube of the progress.

    After update u of T, `average = d * average + (1 - d) * weights` with `d = decay * (u / T)^3`, and the weights
    become the average. After the last update they become the average as it is. Running statistics of batch norm are
    averaged too, all of them in at least 32 bits. The optimizer's state is left alone.

    Zhang et al., "Lookahead optimizer", 2019, with the schedule of Jordan, "94% on CIFAR-10 in 3.29 seconds on a single
    GPU", 2024, section 3.4.

    Args:
        interval: updates between two steps of the average.
        decay: decay of the average at the end of the run, 0..1.
    """

    def __init__(self, *, interval: PositiveInt, decay: Ratio) -> None:
        self._interval, self._decay = interval, decay
        self._average: dict[str, Tensor] = {}

    def check(self, plan: Plan) -> None:
        """Check that each rank has all weights.

        Raises:
            ConfigError: they are sharded.
        """
        if plan.parallel.is_sharded:
            raise ConfigError(
                "interval", "lookahead cannot average sharded weights", remedy="choose parallel=ddp"
            )

    def on_start(self, trainer: Trainer) -> None:
        """Begin with the weights as they are, or with the average of the checkpoint."""
        average = self._average or _numbers(trainer)
        self._average = {
            name: widened(average[name]).to(t.device, copy=True) for name, t in _numbers(trainer).items()
        }

    @torch.no_grad()
    def after_update(self, trainer: Trainer, num_updates: int) -> None:
        """Average the weights and copy the average back, if it is time."""
        total = trainer.plan.clock.total_updates
        if num_updates % self._interval and num_updates < total:
            return
        decay = self._decay * (num_updates / total) ** 3
        for name, tensor in _numbers(trainer).items():
            if num_updates % self._interval == 0:
                self._average[name].lerp_(widened(tensor), 1 - decay)
            tensor.copy_(self._average[name])

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._average = dict(state["average"])


def _numbers(trainer: Trainer) -> dict[str, Tensor]:
    """Return the weights and running statistics."""
    state = each_once(trainer.model.state_dict(keep_vars=True))
    return {name: value.detach() for name, value in state.items() if is_inexact(value)}


@dataclass(frozen=True)
class AlternatingFlip:
    """Shift by up to `max_shift` pixels, fill by reflection, and if `flip`, mirror each image in every other epoch.

    Half of the images are mirrored in the first epoch, the others in the second, and so on: two epochs in a row show
    each image in both ways (Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024, section 3.6).
    """

    max_shift: NotNegativeInt = 0
    flip: bool = True
    num_samples: int | None = None  # of the training set; None: `for_samples` tells

    def for_samples(self, num_samples: int) -> AlternatingFlip:
        """Return this augmentation for a training set of `num_samples` samples."""
        return replace(self, num_samples=num_samples)

    def __call__(self, images: Tensor, draws: Tensor, seed: int) -> Tensor:
        """Return the augmented images, same shape and dtype; the arguments are those of `ShiftFlip`."""
        if self.max_shift >= min(images.shape[-2:]):
            sides = list(images.shape[-2:])
            message = f"{self.max_shift} is too large to fill images of {sides} by reflection"
            raise ConfigError("data.augment.max_shift", message)
        if self.max_shift:
            height, width = (_reflected(side, self.max_shift, images.device) for side in images.shape[-2:])
            images = shifted(images[..., height, :][..., width], self.max_shift, draws, seed)
        if self.flip:
            assert self.num_samples is not None
            in_first = uniform(seed, draws % self.num_samples, 2) < 0.5
            mirror = in_first ^ (draws // self.num_samples % 2 == 1)
            images = torch.where(mirror.view(-1, 1, 1, 1), images.flip(-1), images)
        return images


def _reflected(side: int, margin: int, device: torch.device) -> Tensor:
    """Return the indices of a reflection-padded dimension, (side + 2 margin,). torch cannot pad uint8 this way."""
    places = torch.arange(-margin, side + margin, device=device).abs()
    return torch.where(places < side, places, 2 * (side - 1) - places)
