"""The sections of a file, and which definitions stand in them."""

from __future__ import annotations

from hydrant.commands.eject.bundle import PROGRAM
from hydrant.commands.eject.own import is_of_user

SECTIONS = {
    "randomness": ("Random numbers", ("hydrant.seeding",)),
    "data": ("Data", ("hydrant.data", "hydrant.files.read_file")),
    "mixing": ("Mixing", ()),
    "model": ("Model", ("hydrant.models", "hydrant.training.prepare.memory_format")),
    "loss": ("Loss and metrics", ("hydrant.tasks",)),
    "own": ("Parts of the project", ()),
    "optimizer": ("Optimizer", ("hydrant.optimizers",)),
    "schedule": ("Schedules", ("hydrant.schedules", "hydrant.clock")),
    "average": ("Average of the weights", ()),
    "ranks": ("Ranks", ()),
    "gradients": ("Gradients", ()),
    "evaluation": ("Metrics and evaluation", ()),
    "saving": ("Logging and saving", ()),
    "loop": ("Training", ()),
}
"""By the module of the program: the title of its section, and the modules whose definitions stand there too."""


def section_of(module: str) -> str:
    """Return the section of a module's definitions."""
    if module.startswith(PROGRAM):
        name = module.removeprefix(f"{PROGRAM}.")
        name = {"intervals": "schedule", "metrics": "evaluation"}.get(name, name)
        return name.partition("_")[0]  # data_images, data_tensors and so on are data
    if is_of_user(module):
        return "own"
    for section, (_, prefixes) in SECTIONS.items():
        if any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes):
            return section
    raise AssertionError(f"no section for {module}")
