"""How often the host waits for the device between two log points.

On the digits with a cosine schedule, clipping, two micro-batches an update, loss and accuracy over the updates and an
averaged model. Modes of torch count the operations that bring a value to the host, in the updates between one row
of metrics and the next; where there is CUDA, its sync debug mode does.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.figures import Figure
from hydrant.bare import bare_run
from hydrant.build import prepare
from hydrant.config import check, compose
from hydrant.loop import advance

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
COPIES = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu)
"""These reach no dispatch mode where the tensor is on the host already."""
READS = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select")


class Reads(TorchDispatchMode):
    """Counts the operations whose result the host has to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, _, _ = function.name().removeprefix("aten::").partition(".")
        moves = name == "_to_copy" and (kwargs or {}).get("device") not in (None, args[0].device)
        self.count += name in READS or moves
        return function(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    """Counts the calls that copy a tensor to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function in COPIES
        return function(*args, **(kwargs or {}))


def measure(*, quick: bool) -> list[Figure]:
    """Of each optimizer, in all updates between two rows together, and at the row itself."""
    figures = list[Figure]()
    for title, words in list(OPTIMIZERS.items())[: 1 if quick else None]:
        between, at_row = counts(words)
        figures.append(Figure(f"{title}: between two log points", between, "", "= 0"))
        figures.append(Figure(f"{title}: in the update of a log point", at_row, ""))
    return figures


def counts(words: tuple[str, ...]) -> tuple[int, int]:
    """(between two log points, in the update that ends with one)."""
    prepared = prepare(check(compose([*WORDS, *words, f"duration={3 * LOG_EVERY}"])))
    with bare_run(prepared) as run:
        for _ in range(LOG_EVERY):  # up to the first row; the first update makes the optimizer's state
            advance(run, is_last=False)
        return tuple(syncs(run, num_updates) for num_updates in (LOG_EVERY - 1, 1))


def syncs(run: Any, num_updates: int) -> int:
    """In so many updates from here on."""
    if not torch.cuda.is_available():
        with Reads() as reads, Copies() as copies:
            for _ in range(num_updates):
                advance(run, is_last=False)
        return reads.count + copies.count
    torch.cuda.set_sync_debug_mode("warn")  # this warns, too
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(num_updates):
            advance(run, is_last=False)
    torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in told)
