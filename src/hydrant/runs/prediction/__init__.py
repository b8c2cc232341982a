"""Predictions of a saved run: its inputs, the predictions so far, and the files that hold them in the end."""

from hydrant.runs.prediction.formats import format_of
from hydrant.runs.prediction.inputs import Inputs, find_inputs, of_tensors
from hydrant.runs.prediction.output import predictions_of, print_predictions, write_predictions
from hydrant.runs.prediction.prediction import Prediction
from hydrant.runs.prediction.table import Table

__all__ = [
    "Inputs",
    "Prediction",
    "Table",
    "find_inputs",
    "format_of",
    "of_tensors",
    "predictions_of",
    "print_predictions",
    "write_predictions",
]
