"""The sections of a file, and which definitions stand in them."""

from __future__ import annotations

from hydrant.commands.eject.couplings import COPIED, PROGRAM
from hydrant.commands.eject.own import is_of_user

SECTIONS = {
    "randomness": "Random numbers",
    "data": "Data",
    "model": "Model",
    "loss": "Loss and metrics",
    "own": "Parts of the project",
    "optimizer": "Optimizer",
    "schedule": "Schedules",
    "average": "Average of the weights",
    "ranks": "Ranks",
    "evaluation": "Metrics and evaluation",
    "saving": "Logging and saving",
    "loop": "Training",
}
"""The titles of the sections. A module of the template, such as `data_images`, begins with the name of its section."""


def section_of(module: str) -> str:
    """Return the section of a module's definitions."""
    if module.startswith(PROGRAM):
        name = module.removeprefix(f"{PROGRAM}.")
        name = "loop" if name == "gradients" else name
        return name.partition("_")[0]  # data_images, data_samples and so on are data
    if is_of_user(module):
        return "own"
    for section, prefixes in COPIED.items():
        if any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes):
            return section
    raise AssertionError(f"no section for {module}")
