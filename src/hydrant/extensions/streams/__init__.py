"""Data sets that are read in their order: Hugging Face and iterables."""

from typing import TYPE_CHECKING

from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.extensions.streams.iterable import FunctionSource as FunctionSource
    from hydrant.extensions.streams.iterable import IterableSource as IterableSource
    from hydrant.extensions.streams.iterable import hugging_face as hugging_face
    from hydrant.extensions.streams.iterable import stream as stream

__getattr__, __dir__ = lazy_exports(__name__)
