"""Hydrant: a run by its config, as from the command line."""

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
        stand_at_terminal()
    with ExitStack() as held:
        for name in SETTINGS.get("switched", ()):
            held.enter_context(patch(name, switched(pkgutil.resolve_name(name))))
        status = cli.main(["train", *PLAIN, *SETTINGS["words"]])
    if status:
        raise SystemExit(status)
    TURNS.end(digest=digest(NETWORK[0]))


def switched(own: Any) -> Any:
    """A function that does nothing, or a property that is false, in the blocks in which it is off."""
    if isinstance(own, property):
        return property(lambda task: is_on(TURNS.block_idx) and own.__get__(task))

    def function(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs) if is_on(TURNS.block_idx) else None

    return function


def stand_at_terminal() -> None:
    """Let stdout be a terminal, which another process reads."""
    ours, theirs = pty.openpty()
    subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL)
    os.close(ours)
    os.dup2(theirs, 1)


main()
