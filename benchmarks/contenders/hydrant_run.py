"""Hydrant: a run with a config, as from the command line."""

from __future__ import annotations

import os
import pkgutil
import pty
import subprocess
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from benchmarks.contenders.hydrant_parts import NETWORK
from benchmarks.contenders.work import BATCH_SIZE, INPUT_SHAPE, LR, NUM_CLASSES, SETTINGS, TURNS, digest
from benchmarks.turns import is_on
from hydrant import cli

SHAPE = f"input_shape: [{', '.join(map(str, INPUT_SHAPE))}], num_classes: {NUM_CLASSES}"
PLAIN = (
    f"data={{_target_: benchmarks.contenders.hydrant_parts.data, {SHAPE}}}",
    "model={_target_: benchmarks.contenders.hydrant_parts.model}", "allow_targets=[benchmarks]",
    f"global_batch_size={BATCH_SIZE}", f"eval_batch_size={BATCH_SIZE}", "optimizer=adamw", f"optimizer.lr={LR}",
    "optimizer.weight_decay=0.01", "scheduler=constant", "eval_every=null", "save_every=null", "name=run",
    f"duration={TURNS.num_updates}",
)  # fmt: skip


def main() -> None:
    if SETTINGS.get("terminal"):
        make_stdout_a_terminal()
    with ExitStack() as stack:
        for name in SETTINGS.get("switched", ()):
            stack.enter_context(patch(name, switched(pkgutil.resolve_name(name))))
        status = cli.main(["train", *PLAIN, *SETTINGS["words"]])
    if status:
        raise SystemExit(status)
    TURNS.end(digest=digest(NETWORK[0]))


def switched(original: Any) -> Any:
    """Return a wrapper that in "off" blocks does nothing (a function) or is False (a property)."""
    if isinstance(original, property):
        return property(lambda task: is_on(TURNS.block_idx) and original.__get__(task))

    def function(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if is_on(TURNS.block_idx) else None

    return function


def make_stdout_a_terminal() -> None:
    """Make stdout a terminal that another process reads."""
    reader, terminal = pty.openpty()
    subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.DEVNULL)
    os.close(reader)
    os.dup2(terminal, 1)


main()
