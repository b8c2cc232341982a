"""Hydrant: controlled comparisons of optimizers, schedules, precision and compile settings on plain PyTorch.

The names below are the Python interface. Each is imported when it is first used, so `import hydrant` is fast.
Extensions add theirs by entry points of the group `hydrant.interface`: `hydrant.compare`, for example.
"""

from typing import TYPE_CHECKING

from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.errors import ConfigError as ConfigError
    from hydrant.errors import HydrantError as HydrantError
    from hydrant.interface import Run as Run
    from hydrant.interface import load_run as load_run
    from hydrant.interface.train import Config as Config
    from hydrant.interface.train import compose as compose
    from hydrant.interface.train import train as train
else:  # type checkers see the imports only, and so find a misspelt name
    __getattr__, __dir__ = lazy_exports(__name__, "hydrant.interface")
