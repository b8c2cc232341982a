"""ShiftFlip equals a reference that handles one image at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hydrant import seeding
from hydrant.data import AlternatingFlip, ShiftFlip
from hydrant.errors import ConfigError

SEED = 11


def reference(augment: ShiftFlip, image: Tensor, draw: int) -> Tensor:
    """Shift and mirror one image, pixel by pixel."""
    rows, columns, mirror = (seeding.uniform(SEED, torch.tensor(draw), lane).item() for lane in range(3))
    span = 2 * augment.max_shift + 1
    down, right = int(rows * span) - augment.max_shift, int(columns * span) - augment.max_shift
    height, width = image.shape[1:]
    result = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            from_row, from_column = row + down, column + right
            if 0 <= from_row < height and 0 <= from_column < width:
                result[:, row, column] = image[:, from_row, from_column]
    return result.flip(-1) if augment.flip and mirror < 0.5 else result


@pytest.mark.parametrize("max_shift", [0, 1, 3])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_equals_the_reference(max_shift: int, flip: bool, dtype: torch.dtype) -> None:
    images = torch.randint(1, 255, (16, 3, 6, 5), generator=torch.Generator().manual_seed(0)).to(dtype)
    draws = torch.arange(1000, 1016)
    augment = ShiftFlip(max_shift, flip)
    expected = torch.stack([reference(augment, *pair) for pair in zip(images, draws.tolist(), strict=True)])
    result = augment(images, draws, SEED)
    assert result.dtype == dtype
    assert torch.equal(result, expected)


def test_an_image_does_not_depend_on_its_batch() -> None:
    images, draws = torch.rand(32, 3, 8, 8), torch.arange(32)
    augment = ShiftFlip(2, flip=True)
    whole = augment(images, draws, SEED)
    chosen = torch.tensor([30, 4, 17])
    assert torch.equal(augment(images[chosen], draws[chosen], SEED), whole[chosen])
    assert not torch.equal(augment(images, draws + 32, SEED), whole)  # the next epoch
    assert not torch.equal(augment(images, draws, SEED + 1), whole)


def test_all_shifts_are_equally_likely() -> None:
    image = torch.zeros(1, 1, 3, 3)
    image[..., 1, 1] = 1
    moved = ShiftFlip(1)(image.expand(9000, -1, -1, -1), torch.arange(9000), SEED)
    torch.testing.assert_close(moved.mean(0)[0], torch.full((3, 3), 1 / 9), atol=0.015, rtol=0)


def test_an_alternating_flip_mirrors_each_image_in_every_other_epoch() -> None:
    images, draws = torch.rand(400, 3, 4, 4), torch.arange(400)
    augment = AlternatingFlip().for_samples(400)
    first, second, third = (augment(images, draws + 400 * epoch, SEED) for epoch in range(3))
    is_mirrored = (first != images).flatten(1).any(1)
    assert 150 < is_mirrored.sum() < 250
    assert torch.equal(first, torch.where(is_mirrored.view(-1, 1, 1, 1), images.flip(-1), images))
    assert torch.equal(second, first.flip(-1))
    assert torch.equal(third, first)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_its_shifts_fill_by_reflection(dtype: torch.dtype) -> None:
    images = torch.arange(32 * 30).view(32, 1, 6, 5).remainder(251).to(dtype)
    shifted = AlternatingFlip(2, flip=False)(images, torch.arange(32), SEED)
    assert shifted.dtype == dtype
    places = set[tuple[int, int]]()
    for image, result in zip(images, shifted, strict=True):
        padded = torch.nn.functional.pad(image.float(), (2, 2, 2, 2), mode="reflect").to(dtype)
        found = [
            (r, c) for r in range(5) for c in range(5) if torch.equal(padded[:, r : r + 6, c : c + 5], result)
        ]
        assert found
        places.update(found)
    assert len(places) > 10


def test_a_shift_beyond_the_reflection_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.augment\.max_shift: 4 is too large"):
        AlternatingFlip(4, flip=False)(torch.rand(1, 3, 4, 6), torch.arange(1), SEED)
