"""Data sets that are the user's own."""

from __future__ import annotations

from hydrant.commands.eject.program.data_loading import Loader, TrainingBatches, loaders
from hydrant.commands.eject.program.parts import make_data


def load_dataset() -> tuple[TrainingBatches, Loader]:
    """Return the samples to train on and to evaluate on."""
    return loaders(*make_data())
