"""Data sets. An option of the config group `data` builds a `Data`, whose sources read the batches of any update."""

from hydrant.data.base import Data as Data
from hydrant.data.base import Indices as Indices
from hydrant.data.base import NoMixing as NoMixing
from hydrant.data.base import PositionedSource as PositionedSource
from hydrant.data.base import PositionedStream as PositionedStream
from hydrant.data.base import Reader as Reader
from hydrant.data.base import Source as Source
from hydrant.data.base import Stream as Stream
from hydrant.data.base import StreamSpec as StreamSpec
from hydrant.data.dataset import BatchSource as BatchSource
from hydrant.data.dataset import dataset as dataset
from hydrant.data.dataset import dataset_source as dataset_source
from hydrant.data.dataset import tensors as tensors
from hydrant.data.in_memory import InMemorySource as InMemorySource
from hydrant.data.loader import LoaderSource as LoaderSource
from hydrant.data.loader import SampleSet as SampleSet
from hydrant.data.vision import ShiftFlip as ShiftFlip
from hydrant.data.vision import digits as digits
from hydrant.data.vision import synthetic as synthetic
