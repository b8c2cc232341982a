"""Data sets that are the user's own."""

from __future__ import annotations

from hydrant.commands.eject.program.data_loading import Loader, TrainingBatches, loaders, test_loader
from hydrant.commands.eject.program.parts import make_data, make_test


def load_dataset() -> tuple[TrainingBatches, Loader]:
    """Return the samples to train on and to evaluate on."""
    return loaders(*make_data())


def load_dataset_test() -> Loader:
    """Return the samples to test on."""
    return test_loader(make_test())
