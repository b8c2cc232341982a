"""Names in Hydrant's code that `hydrant eject` finds by their spelling: neither types nor imports notice a renaming.

Whoever renames one of these renames it here too. A comment at each definition names this file, and
`tests/commands/eject/test_couplings.py` checks that each exists. The targets of parts, which are strings in configs
too, are in `refusals.py`.
"""

from __future__ import annotations

PROGRAM = "hydrant.commands.eject.program"
"""The package of the template."""

CHECKS = "check_"
"""The prefix of functions that only reject a config. Statements that call them are dropped."""

ERRORS = ("ConfigError", "unknown_name")
"""What such functions raise. `if ...: raise ConfigError(...)` is dropped too."""

COPIED = {
    "data": ("hydrant.data", "hydrant.files"),
    "model": ("hydrant.models", "hydrant.training.prepare.memory_format"),
    "loss": ("hydrant.tasks",),
    "optimizer": ("hydrant.optimizers",),
    "schedule": ("hydrant.schedules",),
    "randomness": ("hydrant.seeding",),
    "ranks": ("hydrant.training.distributed.buffers",),
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
"""Definitions of Hydrant that the file replaces: module and name of each -> module and name of the replacement."""

OF_OWN_PARTS = {
    "Data": "data_samples",
    "InMemorySource": "data_samples",
    "Batch": "loss_own",
    "Outcome": "loss_own",
    "Task": "loss_own",
}
"""What a user's parts import from Hydrant besides functions and models -> the template's module with a short form."""

CHECK_SHAPES, TENSOR_READER = "check_shapes", "tensor_reader"
"""Functions that a user's parts call: the first returns its first argument; the second is for `hydrant predict`."""

INPUTS, READOUT = "inputs", "readout"
"""Arguments of the `forward` of language models, whose values are known."""

ATTENTION, DOCUMENTS = "Attention", "documents"
"""A class of `hydrant.models.transformer`, and an argument of its `forward`, which is None without packed documents."""

WITH_EFFECTS = ("add_gradients", "clip_gradients")
"""Functions of the template that are called even if nothing reads their result."""

CONSTRUCTOR = "__init__"
"""The constructor of a model's classes. It is replaced while the model is made once more, to learn the arguments."""
