"""Hydrant: controlled comparisons of optimizers, schedules, precision and compile settings on plain PyTorch.

The names below are the Python interface. Each is imported when it is first used, so `import hydrant` is fast.
"""

from typing import TYPE_CHECKING

from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.errors import ConfigError as ConfigError
    from hydrant.errors import HydrantError as HydrantError
    from hydrant.extensions.compare.interface import Comparison as Comparison
    from hydrant.extensions.compare.interface import compare as compare
    from hydrant.extensions.compare.interface import load_runs as load_runs
    from hydrant.extensions.predict.interface import Predictions as Predictions
    from hydrant.interface.config import Config as Config
    from hydrant.interface.config import compose as compose
    from hydrant.interface.run import Run as Run
    from hydrant.interface.run import load_run as load_run
    from hydrant.interface.train import train as train
else:  # type checkers see the imports only, and so find a misspelt name
    __getattr__, __dir__ = lazy_exports(__name__)
