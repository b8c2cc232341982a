"""Measure configs beside each other: a few updates of each, in fresh processes."""

from hydrant.measuring.cells import Cell, Measurement, measure_grid
from hydrant.measuring.rows import Row, name_of, rows_of

__all__ = ["Cell", "Measurement", "Row", "measure_grid", "name_of", "rows_of"]
