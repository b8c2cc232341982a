"""What a task predicts for samples, batch by batch, as arrays."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch, Tensors
from hydrant.data import Source, StreamSpec
from hydrant.data.dataset import load_tensors
from hydrant.data.loader import LoaderBatches
from hydrant.errors import ConfigError, suggestion
from hydrant.tasks.base import eval_mode
from hydrant.training.costs import explain_out_of_memory
from hydrant.training.precision import Precision

NUMBERS, TARGET = "numbers", "target"
"""The names of the arrays that do not come from the task: the index of each sample in the source, and its target."""

_RESERVED = (NUMBERS, TARGET, "index", "file", "class_names")
"""Names that files with predictions use for something else."""

Arrays = dict[str, np.ndarray]
"""Arrays of a batch by name, (B, ...) each."""


def predict(
    task: Any, source: Source, spec: StreamSpec, batch_size: int, precision: Precision
) -> Iterator[Arrays]:
    """Yield the arrays of each batch: `numbers`, `target` if it is a tensor, and what the task predicts.

    Samples that are damaged are left out, if the data say so. Random numbers that a task draws are the same for the
    same batch.

    Args:
        task: on the device of `spec`.
        source: the samples.
        spec: which samples this rank reads.
        batch_size: how many samples are predicted at once.
        precision: autocasts the forward pass.

    Raises:
        ConfigError: the task predicts something else than tensors with an entry for each sample.
    """
    with eval_mode(task):
        for numbers, batch in numbered_batches(source, spec, batch_size):
            seeding.seed_evaluation(int(numbers[0]) // batch_size, spec.device)
            arrays = {NUMBERS: numbers.numpy(), **_targets(batch, len(numbers))}
            yield arrays | _predict_batch(task, batch, precision)


@torch.no_grad()
@explain_out_of_memory("Lower --batch-size")
def _predict_batch(task: Any, batch: Batch, precision: Precision) -> Arrays:
    with precision.autocast():
        predictions: Any = task.predict(precision.cast(batch).inputs)
    arrays = Arrays()
    for name, value in predictions.items():
        if not isinstance(value, Tensor) or value.shape[:1] != (batch.num_samples,):
            result = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            message = f"predicts {name!r} as {result} for {batch.num_samples} samples"
            raise ConfigError("task", f"{message}; a tensor with an entry for each is needed")
        if name in _RESERVED:
            reason = f"predicts {name!r}, which names something else"
            raise ConfigError("task", reason, remedy="use another name")
        arrays[name] = _as_array(value)
    return arrays


def _targets(batch: Batch, num_samples: int) -> Arrays:
    targets = batch.targets
    is_tensor = isinstance(targets, Tensor) and targets.shape[:1] == (num_samples,)
    return {TARGET: _as_array(targets)} if is_tensor else {}


def _as_array(tensor: Tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).cpu().numpy()


TENSOR_FILES = (".pt", ".npz", ".npy")
"""A `.pt` file is written by `torch.save`, an `.npz` file by `numpy.savez`, an `.npy` file by `numpy.save`."""


def read_inputs(path: Path, key: str) -> Tensors:
    """Return the inputs in a tensor file: all of it if it is one array, else the entry `inputs`.

    Raises:
        ConfigError: there is no such entry; the message names `key`, the config key of the file.
        DataError: the file cannot be read.
    """
    content = load_tensors(path)
    if not isinstance(content, Mapping):
        return content
    entries = cast("Mapping[str, Tensors]", content)
    if "inputs" in entries:
        return entries["inputs"]
    if len(entries) == 1 and path.suffix.lower() == ".npz":
        return next(iter(entries.values()))
    message = f"{path} has no entry 'inputs'"
    raise ConfigError(key, message, remedy=suggestion("inputs", map(str, entries), "Entries"))


def numbered_batches(source: Source, spec: StreamSpec, batch_size: int) -> Iterator[tuple[Tensor, Batch]]:
    """Yield every evaluation batch and the numbers of its samples in the source, int64 (B,) on the host.

    Raises:
        ConfigError: the source gives another number of samples than it has.
    """
    batches, end = source.batches(spec, batch_size), 0
    if isinstance(batches, LoaderBatches):
        yield from batches.numbered()
        return
    for batch in batches:
        start, end = end, end + batch.num_samples
        yield torch.arange(start, end), batch
    if end != source.num_samples:
        kind = type(source).__name__
        raise ConfigError("data", f"{kind}.batches gives {end} samples, but it has {source.num_samples}")
