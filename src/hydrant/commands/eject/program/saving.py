"""Logging and saving."""

from __future__ import annotations

import json
import time
from fractions import Fraction
from typing import Any

from hydrant.commands.eject.program.settings import *


def is_due(num_updates: int, every: int | Fraction) -> bool:
    """Return whether the latest update reached a multiple of `every`."""
    return round(round(num_updates / every) * every) == num_updates


def count(num_updates: int, every: int | Fraction) -> int:
    """Return how many multiples of `every` the updates have reached."""
    if ROUNDS_UP:
        return int(num_updates // every)
    below = int(num_updates // every)
    return below + (round((below + 1) * every) <= num_updates)  # the next one may be rounded down


def has_stalled(num_updates: int, best: dict[str, Any] | None) -> bool:
    """Return whether PATIENCE evaluations have followed the best one."""
    best_at = 0 if best is None else best["num_updates"]
    return count(num_updates, EVAL_EVERY) - count(best_at, EVAL_EVERY) >= PATIENCE


def log(num_updates: int, row: dict[str, float]) -> None:
    """Print a row, and append it to metrics.jsonl."""
    if RANKED and RANK > 0:
        return
    print(f"update {num_updates}:", *(f"{name}={value:.4g}" for name, value in row.items()), flush=True)
    place = {"num_updates": num_updates, "epoch": num_updates * BATCH_SIZE / NUM_SAMPLES, "time": time.time()}
    with (FOLDER / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**place, **row}) + "\n")
