"""Data sets in CSV files."""

from typing import TYPE_CHECKING

from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.extensions.tables.table import csv as csv

__getattr__, __dir__ = lazy_exports(__name__)
