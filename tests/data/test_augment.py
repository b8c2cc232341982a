"""ShiftFlip equals a reference that handles one image at a time."""

import pytest
import torch
from torch import Tensor

from hydrant import seeding
from hydrant.data import ShiftFlip

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
