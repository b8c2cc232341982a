"""How a typed user predicts. Pyrefly checks the types; the code is not run."""

from pathlib import Path
from typing import assert_type

import pandas as pd

import hydrant
from hydrant.extensions.predict import Predictions, predict


def predict_files(run: hydrant.Run) -> None:
    """Predict, and read the table."""
    assert_type(predict(run, "photos", weights="best", probabilities=True), Predictions)
    assert_type(predict(run, ["a.jpg", Path("b.jpg")], batch_size=8).table, pd.DataFrame)
