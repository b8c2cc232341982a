"""MNIST-1D: signals of 40 numbers in ten classes, made by a recipe, without a download."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hydrant.data.base import Data, check_shapes
from hydrant.data.in_memory import InMemorySource, tensor_reader
from hydrant.data.splits import cut_part
from hydrant.errors import ConfigError

_LENGTH = 40  # of a signal
_TEMPLATE_LENGTH = 12
_PADDING = (36, 60)  # the least and the most zeros after a template
_PADDED_LENGTH = _TEMPLATE_LENGTH + _PADDING[1]
_SCALE = 0.4  # the width of the range of factors around 1
_SHEAR = 0.75  # the width of the range of the slopes around 0
_MAX_TRANSLATION = 48
_NOISE = 0.02  # the standard deviation
_CORRELATED_NOISE = 0.25  # the standard deviation before the smoothing
_SMOOTHING = 2  # the standard deviation of the Gaussian filter, in points
_TEST_RATIO = 0.2

_TEMPLATES = (
    (5, 6, 6.5, 6.75, 7, 7, 7, 7, 6.75, 6.5, 6, 5),
    (5, 3, 3, 3.4, 3.8, 4.2, 4.6, 5, 5.4, 5.8, 5, 5),
    (5, 6, 6.5, 6.5, 6, 5.25, 4.75, 4, 3.5, 3.5, 4, 5),
    (5, 6, 6.5, 6.5, 6, 5, 5, 6, 6.5, 6.5, 6, 5),
    (5, 4.4, 3.8, 3.2, 2.6, 2.6, 5, 5, 5, 5, 5, 5),
    (5, 3, 3, 3, 3, 5, 6, 6.5, 6.5, 6, 4.5, 5),
    (5, 4, 3.5, 3.25, 3, 3, 3, 3, 3.25, 3.5, 4, 5),
    (5, 7, 7, 6.6, 6.2, 5.8, 5.4, 5, 4.6, 4.2, 5, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 4, 3.5, 3.5, 4, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 5, 5, 4.7, 4.3, 5),
)  # fmt: skip
"""The digits as the horizontal position of a pen that goes down the page."""


def mnist1d(
    *,
    input_shape: Sequence[int] = (1, _LENGTH),
    num_classes: int = 10,
    num_samples: int = 5000,
    samples_seed: int = 42,
    shuffled: bool = False,
    val_ratio: float = 0.2,
    split_seed: int = 0,
) -> Data:
    """Return MNIST-1D (Greydanus & Kobak, "Scaling down deep learning", 2020), as PyPI's package `mnist1d` makes it.

    The template of a digit is padded, stretched, scaled, shifted, sheared, resampled to 40 points and made noisy. All
    signals together have mean 0 and standard deviation 1. The last fifth of them are the test set, which is the
    validation set with a `val_ratio` of 0.

    Args:
        num_samples: for training, validation and test together; as many of each digit.
        samples_seed: of the signals.
        shuffled: the points of all signals are in the same random order, so that neighbours mean nothing.
        val_ratio: of each class of the other four fifths, to validate on.
        split_seed: of the choice of these samples.

    Raises:
        ConfigError: an argument is out of its range.
    """
    if num_samples < 1 or num_samples % len(_TEMPLATES):
        message = (
            f"needs a multiple of {len(_TEMPLATES)} above 0, for as many of each digit, not {num_samples}"
        )
        raise ConfigError("data.num_samples", message)
    if not 0 <= samples_seed < 2**32:
        raise ConfigError("data.samples_seed", f"needs a number from 0 to 2**32 - 1, not {samples_seed}")
    (inputs, targets), test = make_signals(num_samples, samples_seed, shuffled=shuffled)
    train, val = cut_part(targets.numpy(), val_ratio, split_seed, "data.val_ratio")
    data = Data(
        InMemorySource(inputs[train], targets[train]),
        InMemorySource(inputs[val], targets[val]) if len(val) else InMemorySource(*test),
        (1, _LENGTH),
        len(_TEMPLATES),
        test=InMemorySource(*test) if len(val) else None,
        reader=tensor_reader(),
        class_names=tuple(map(str, range(len(_TEMPLATES)))),
    )
    return check_shapes(data, input_shape, num_classes)


def make_signals(
    num_samples: int, seed: int, *, shuffled: bool
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return signals, float32 (N, 1, 40), and their digits, int64 (N,): four fifths to train on, and the rest."""
    from scipy.ndimage import gaussian_filter1d  # slow, and most runs need none of it

    rng, size = np.random.RandomState(seed), _PADDED_LENGTH
    digits = np.repeat(np.arange(len(_TEMPLATES)), num_samples // len(_TEMPLATES))
    templates = _templates()
    signals = np.empty((num_samples, size))
    smooth, noise = np.empty_like(signals), np.empty_like(signals)
    shears = np.empty((num_samples, 1))
    for n, digit in enumerate(digits.tolist()):  # the draws are those of the package, in its order
        low, high = _PADDING
        padded = templates[digit, : _TEMPLATE_LENGTH + low + int(rng.rand() * (high - low + 1))]
        stretched = _resampled(padded, size) * (1 + _SCALE * (rng.rand() - 0.5))
        shift = rng.randint(_MAX_TRANSLATION)
        signals[n, :shift], signals[n, shift:] = stretched[size - shift :], stretched[: size - shift]
        smooth[n], noise[n] = rng.randn(size), rng.randn(size)
        shears[n] = _SHEAR * (rng.rand() - 0.5)
    smooth = gaussian_filter1d(_CORRELATED_NOISE * smooth, _SMOOTHING)
    signals = np.where(signals != 0, signals, smooth) + _NOISE * noise
    signals = signals - shears * np.linspace(-0.5, 0.5, size)
    order = rng.permutation(num_samples)
    resampled = np.stack([_resampled(signal, _LENGTH) for signal in signals[order]])
    if shuffled:
        resampled = resampled[:, rng.permutation(_LENGTH)]
    resampled = (resampled - resampled.mean()) / resampled.std()
    num_train = int(num_samples * (1 - _TEST_RATIO))
    inputs, targets = torch.from_numpy(resampled).float().unsqueeze(1), torch.from_numpy(digits[order])
    return (inputs[:num_train], targets[:num_train]), (inputs[num_train:], targets[num_train:])


def _templates() -> np.ndarray:
    """Return the templates, each with the same standard deviation, 0 at its start and zeros after it: (10, 72)."""
    x = np.array(_TEMPLATES)
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    x = (x - x[:, :1]) / 6 + 1e-8  # a point that is exactly 0 is padding, which correlated noise replaces
    return np.pad(x, ((0, 0), (0, _PADDING[1])))


def _resampled(signal: np.ndarray, length: int) -> np.ndarray:
    """Return a signal at `length` points by linear interpolation."""
    return np.interp(_points(length), _points(len(signal)), signal)


@functools.cache
def _points(length: int) -> np.ndarray:
    return np.linspace(0, 1, length)
