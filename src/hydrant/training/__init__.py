"""The training engine: the loop and everything it calls.

The names below are the `_target_`s of config groups. Importing this package imports no torch.
"""

from typing import TYPE_CHECKING

from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.training.checkpoint.weights import with_weights as with_weights
    from hydrant.training.compilation import Eager as Eager
    from hydrant.training.distributed.ddp import Ddp as Ddp
    from hydrant.training.distributed.world import Single as Single
    from hydrant.training.hooks import NoProfiler as NoProfiler
    from hydrant.training.passed_objects import passed_data as passed_data
    from hydrant.training.passed_objects import passed_model as passed_model
    from hydrant.training.passed_objects import passed_task as passed_task
    from hydrant.training.precision import Precision as Precision

__getattr__, __dir__ = lazy_exports(__name__)
