"""Data sets. A data option builds a `Data`; its sources are map-style and give batches for any position."""

from hydrant.data.augment import ShiftFlip
from hydrant.data.base import Data, Source, Stream, StreamSpec
from hydrant.data.digits import digits
from hydrant.data.resident import ResidentSource
from hydrant.data.synthetic import synthetic

__all__ = [
    "Data",
    "ResidentSource",
    "ShiftFlip",
    "Source",
    "Stream",
    "StreamSpec",
    "digits",
    "synthetic",
]
