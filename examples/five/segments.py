"""The class of each pixel."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset


class Segments(Dataset):
    """Images and masks of the same names, in the folders `images` and `masks`."""

    def __init__(self, root, mirror):
        self.images = sorted(Path(root, "images").glob("*.png"))
        self.mirror = mirror

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        path = self.images[index]
        image = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) / 255
        mask = torch.from_numpy(np.array(Image.open(path.parents[1] / "masks" / path.name))).long()
        if self.mirror and torch.rand(()) < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        return image, mask


class SmallUNet(nn.Module):
    def __init__(self, num_classes, width):
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU())
        self.coarse = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.classifier = nn.Conv2d(2 * width, num_classes, 3, padding=1)

    def forward(self, images):  # (B, 3, H, W) -> (B, num_classes, H, W)
        fine = self.fine(images)
        coarse = nn.functional.interpolate(self.coarse(fine), size=fine.shape[-2:])
        return self.classifier(torch.cat([fine, coarse], dim=1))
