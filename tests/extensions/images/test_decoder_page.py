"""The numbers on the page about decoders."""

import re
from pathlib import Path

import pytest
import torch
from repository import ROOT

from benchmarks import data_loading
from benchmarks.data_loading import DECODERS, PHOTOS, STD, Photos
from hydrant.clock import Steps
from hydrant.data import Data, StreamSpec

NUM_FILES = 12


@pytest.mark.slow
@pytest.mark.parametrize("size", [(500, 400), (1600, 1200)], ids=str)
def test_the_guide_says_how_near_the_pixels_of_decoders_are(size: tuple[int, int], tmp_path: Path) -> None:
    """On files like those of the benchmark."""
    page = (ROOT / "docs" / "guides" / "data.md").read_text()
    row = rf"^\| {size[0]} x {size[1]} pixels.* \| (\d+) dB(?: \(bytes differ by at most (\d+)\))? \| (\d+) dB \|$"
    [(crops, most, whole)] = re.findall(row, page, re.MULTILINE)
    photos = Photos(
        "", NUM_FILES, size, PHOTOS.grain, PHOTOS.quality, PHOTOS.input_size, PHOTOS.interpolation
    )
    data_loading._write_images(tmp_path, photos)
    exact, *others = (
        pixels(data_loading._hydrant_folder(str(tmp_path), photos, name, num_workers=0)) for name in DECODERS
    )
    for other in others:
        for ours, reference, shown in zip(other, exact, (crops, whole), strict=True):
            assert data_loading._psnr(ours, reference) == pytest.approx(float(shown), abs=1)
        if most:
            differences = (other[0] - exact[0]).abs() * torch.tensor(STD).view(-1, 1, 1) * 255
            assert round(float(differences.max())) == int(most)


def pixels(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalised crops of a training batch, and those of an evaluation."""
    spec = StreamSpec(0, Steps.constant(NUM_FILES), NUM_FILES, 0, 1, torch.device("cpu"))
    train = next(iter(data.train.stream(spec).micro_batches(0))).inputs
    return train, torch.cat([batch.inputs for batch in data.val.batches(spec, NUM_FILES)])
