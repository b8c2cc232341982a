"""`hydrant train` on the digits with its usual parts and the overrides `words`."""

from __future__ import annotations

from benchmarks.contenders.digits_parts import NETWORK
from benchmarks.contenders.digits_samples import accuracy
from benchmarks.contenders.work import SETTINGS, TURNS
from hydrant import cli

WORDS = (
    "data._target_=benchmarks.contenders.digits_parts.data",
    "model._target_=benchmarks.contenders.digits_parts.model", "allow_targets=[benchmarks]", "tracker=local",
    "scheduler=constant", "eval_every=null", "save_every=null", "name=run", f"duration={TURNS.num_updates}",
)  # fmt: skip


def main() -> None:
    if status := cli.main(["train", *WORDS, *SETTINGS["words"]]):
        raise SystemExit(status)
    TURNS.end(accuracy=accuracy(NETWORK[0]))


main()
