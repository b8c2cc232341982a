"""The training engine: the loop and everything it calls.

The names below are the `_target_`s of config groups. Importing this package imports no torch.
"""

from hydrant.imports.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Compile": "hydrant.training.compile.compiled_task",
        "Ddp": "hydrant.training.distributed.ddp",
        "Eager": "hydrant.training.compile.base",
        "Fsdp": "hydrant.training.distributed.fsdp",
        "NoProfiler": "hydrant.training.profiling.base",
        "Precision": "hydrant.training.precision",
        "Single": "hydrant.training.distributed.base",
        "TorchProfiler": "hydrant.training.profiling.trace",
        "passed_data": "hydrant.training.passed_objects",
        "passed_model": "hydrant.training.passed_objects",
        "passed_task": "hydrant.training.passed_objects",
        "with_weights": "hydrant.training.checkpoint.weights",
    },
)
