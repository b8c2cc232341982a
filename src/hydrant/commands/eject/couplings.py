"""What `hydrant eject` knows of Hydrant by its spelling, where types and imports do not notice another name.

Who renames one of these renames it here too. At their other end, a comment names this file, and
`tests/commands/eject/test_couplings.py` checks that each exists. The targets of parts, which are strings in configs
too, are in `refusals.py`.
"""

from __future__ import annotations

PROGRAM = "hydrant.commands.eject.program"
"""The package of the template."""

CHECKS = "check_"
"""Begins the names of functions that only reject a config. Statements that call them are dropped."""

ERRORS = ("ConfigError", "unknown_name")
"""What is raised in such functions. `if ...: raise ConfigError(...)` is dropped too."""

COPIED = {
    "data": ("hydrant.data", "hydrant.files.read_file"),
    "model": ("hydrant.models", "hydrant.training.prepare.memory_format"),
    "loss": ("hydrant.tasks",),
    "optimizer": ("hydrant.optimizers",),
    "schedule": ("hydrant.schedules",),
    "randomness": ("hydrant.seeding",),
}
"""By section of the file: the modules whose definitions are copied into it."""

CLOCK = "clock"
"""The argument of curves with the run's clock. `clock.updates(x, key)` becomes `x`, which is then given in updates."""

FRAMED = "@framed\n"
"""The decorator of curves, which the file does not have: it calls `Schedule` itself."""

CURVE = "Curve"
"""The type `Callable[[int], float]`, which the file spells out."""

SPLIT_RUN = "split_run"
"""A function of the clock, a warmup and a cooldown, which returns the updates of the first one too."""

REPLACED = {
    ("hydrant.optimizers.norms", "total_norm"): ("torch.nn.utils", "get_total_norm"),
    ("hydrant.clock", "Interval"): (f"{PROGRAM}.schedule", "Interval"),
}
"""What stands for definitions of Hydrant: module and name by which they are imported, and those of the other one."""

OF_OWN_PARTS = {
    "Data": "data_samples",
    "InMemorySource": "data_samples",
    "Batch": "loss_own",
    "Outcome": "loss_own",
    "Task": "loss_own",
}
"""What parts of the user use of Hydrant besides functions and models: the module of the template with a short form."""

CHECK_SHAPES, TENSOR_READER = "check_shapes", "tensor_reader"
"""Functions that parts of the user call: one returns its first argument; the other one is for `hydrant predict`."""

CLEARER = {"mix": "hash_of", "_MIX": "MULTIPLIERS"}
"""Other names for definitions of `hydrant.seeding`, because a file may mix samples too."""

INPUTS, READOUT = "inputs", "readout"
"""Arguments of the `forward` of language models, whose values are known."""

ATTENTION, DOCUMENTS = "Attention", "documents"
"""A class of `hydrant.models.transformer`, and an argument of its `forward`, which is None without packed documents."""

WITH_EFFECTS = ("add_gradients", "clip_gradients")
"""Functions of the template that are called also if nothing reads their result."""

CONSTRUCTOR = "__init__"
"""Of the classes of a model: it is replaced, while the model is made once more, to learn its arguments."""
