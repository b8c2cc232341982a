"""Data sets. An option of the config group `data` builds a `Data`, whose sources read the batches of any update."""

from hydrant.data.augment import AlternatingFlip, MixupCutmix, NoMixing, ShiftFlip
from hydrant.data.base import Data, Indices, PositionedStream, Reader, Source, Stream, StreamSpec
from hydrant.data.dataset import dataset, dataset_source, tensors
from hydrant.data.folder import ImageAugment, image_folder
from hydrant.data.hugging_face import hugging_face
from hydrant.data.in_memory import InMemorySource
from hydrant.data.iterable import IterableSource, stream
from hydrant.data.loader import LoaderSource, SampleSet
from hydrant.data.memmap import memmap
from hydrant.data.table import csv
from hydrant.data.tokens import TokenData, tokens
from hydrant.data.vision import cifar10, cifar100, digits, mnist, synthetic

__all__ = [
    "AlternatingFlip",
    "Data",
    "ImageAugment",
    "InMemorySource",
    "Indices",
    "IterableSource",
    "LoaderSource",
    "MixupCutmix",
    "NoMixing",
    "PositionedStream",
    "Reader",
    "SampleSet",
    "ShiftFlip",
    "Source",
    "Stream",
    "StreamSpec",
    "TokenData",
    "cifar10",
    "cifar100",
    "csv",
    "dataset",
    "dataset_source",
    "digits",
    "hugging_face",
    "image_folder",
    "memmap",
    "mnist",
    "stream",
    "synthetic",
    "tensors",
    "tokens",
]
