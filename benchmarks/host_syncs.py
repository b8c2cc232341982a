"""How often the host waits for the device between two log points.

A run on the digits with a cosine schedule, clipping, two micro-batches an update, means of loss and accuracy, and an
averaged model (EMA). Without CUDA, dispatch modes of torch count the operations that copy a value to the host, in the
updates between two metrics rows. With CUDA, torch's sync debug mode counts them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.figures import Figure
from benchmarks.report import Cell
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.training.loop import train_update
from hydrant.training.prepare.build import prepare
from hydrant.training.prepare.micro_batch import scratch_trainer

LOG_EVERY = 50
WORDS = (
    "scheduler=cosine", "max_grad_norm=1.0", "micro_batch_size=32", "averaging=ema", "tracker=local",
    f"log_every={LOG_EVERY}", "eval_every=null", "save_every=null",
)  # fmt: skip
OPTIMIZERS = {
    "SGD": ("optimizer=sgd",),
    "AdamW, fused": ("optimizer=adamw", "optimizer.fused=true"),
    "Lion": ("optimizer=lion",),
}
GOALS = {f"{title}: between two log points": "= 0" for title in OPTIMIZERS}
COPIES = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu)
"""These do not reach a dispatch mode if the tensor is already on the host."""
READS = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select")


class Reads(TorchDispatchMode):
    """Counts the operations for whose result the host has to wait."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, _, _ = function.name().removeprefix("aten::").partition(".")
        is_transfer = name == "_to_copy" and (kwargs or {}).get("device") not in (None, args[0].device)
        self.count += name in READS or is_transfer
        return function(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    """Counts the calls that copy a tensor to the host."""

    count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function in COPIES
        return function(*args, **(kwargs or {}))


def cells(*, quick: bool) -> dict[str, Cell]:
    """Return a cell for each optimizer."""
    titles = list(OPTIMIZERS)[: 1 if quick else None]
    return {title: partial(measure_optimizer, title) for title in titles}


def measure_optimizer(title: str) -> Iterator[Figure]:
    """Count in all updates between two rows together, and in the update of a row."""
    between, at_row = counts(OPTIMIZERS[title])
    what = f"{title}: between two log points"
    yield Figure(what, between, "", GOALS[what])
    yield Figure(f"{title}: in the update of a log point", at_row, "")


def counts(words: tuple[str, ...]) -> tuple[int, int]:
    """Return the counts (between two log points, in the update of a log point)."""
    prepared = prepare(check(compose([*WORDS, *words, f"duration={3 * LOG_EVERY}"])))
    with scratch_trainer(prepared) as trainer:
        for _ in range(LOG_EVERY):  # up to the first row; the first update creates the optimizer's state
            train_update(trainer, is_last=False)
        return tuple(syncs(trainer, num_updates) for num_updates in (LOG_EVERY - 1, 1))


def syncs(trainer: Any, num_updates: int) -> int:
    """Count the waits in the next `num_updates` updates."""
    if not torch.cuda.is_available():
        with Reads() as reads, Copies() as copies:
            for _ in range(num_updates):
                train_update(trainer, is_last=False)
        return reads.count + copies.count
    torch.cuda.set_sync_debug_mode("warn")  # this call itself warns, so it is outside catch_warnings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(num_updates):
            train_update(trainer, is_last=False)
    torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught)
