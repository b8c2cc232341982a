"""Data sets. A data option builds a `Data`; its sources are map-style and give batches for any position."""

from hydrant.data.augment import ShiftFlip
from hydrant.data.base import Data, Source, Stream, StreamSpec
from hydrant.data.digits import digits
from hydrant.data.folder import ImageAugment, image_folder
from hydrant.data.loader import LoaderSource, SampleSet
from hydrant.data.resident import ResidentSource
from hydrant.data.synthetic import synthetic
from hydrant.data.vision import cifar10, cifar100, mnist

__all__ = [
    "Data",
    "ImageAugment",
    "LoaderSource",
    "ResidentSource",
    "SampleSet",
    "ShiftFlip",
    "Source",
    "Stream",
    "StreamSpec",
    "cifar10",
    "cifar100",
    "digits",
    "image_folder",
    "mnist",
    "synthetic",
]
