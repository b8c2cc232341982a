"""`preview`: what a config would do, without training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.config import check, compose
from hydrant.config.arguments import Flags, written


def main(arguments: Sequence[str]) -> int:
    """Print the plan of a config; the exit status."""
    parser = Flags("preview")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--png", type=Path)
    options, overrides = parser.split(arguments)
    show(check(compose(overrides)), as_json=options.json, png=options.png)
    return 0


def show(config: dict[str, object], *, as_json: bool, png: Path | None) -> None:
    """Prepare a run on the host and print it."""
    from hydrant.build import Prepared, prepare  # brings in torch
    from hydrant.plotting import draw_curves, sparkline
    from hydrant.profiling import count_parameters

    prepared: Prepared = prepare(config, is_plan=True)
    schedules = prepared.schedule_values(range(prepared.clock.total_updates))
    total = prepared.clock.total_updates
    if png is not None:
        with written("--png", png):
            draw_curves({key: {"": (range(total), values)} for key, values in schedules.items()}, png)
        if not as_json:
            print(f"picture      {png}")
    if as_json:
        print(json.dumps({"total_updates": total, "schedules": schedules}))
        return
    clock, spec = prepared.clock, prepared.spec
    parameters, trained = count_parameters(prepared.task)
    print(f"updates      {total:,} of {spec.global_batch_size} samples: {clock.epoch(total):.4g} epochs")
    print(
        f"samples      {prepared.train.num_samples:,} to train on, {prepared.val.num_samples:,} to evaluate on"
    )
    at_most = " at most: auto finds what fits" if config["micro_batch_size"] == "auto" else ""
    print(
        f"micro-batch  {spec.micro_batch_size} samples x {spec.num_micro_steps} x {spec.world_size} rank(s){at_most}"
    )
    print(f"model        {parameters:,} parameters, {trained:,} trained")
    print(
        f"cost         {prepared.flops_per_sample:,} FLOPs a sample forward, about 3 times that to train on it"
    )
    for name, share in prepared.optimization.shares.items():
        for group_idx, group in enumerate(share.optimizer.param_groups):
            print(f"group        {name}.{group_idx} {_described(group)}")
    for key, values in schedules.items():
        print(f"schedule     {key}: {values[0]:.4g} -> {max(values):.4g} -> {values[-1]:.4g}")
        print(f"             {sparkline(values)}")


def _described(group: Mapping[str, Any]) -> str:
    """A parameter group's name, its size and its numbers."""
    count = sum(p.numel() for p in group["params"])
    fields = {k: v for k, v in group.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    shown = ", ".join(f"{k} {v:g}" for k, v in fields.items())
    return f"({group.get('name', '-')}): {count:,} parameters; {shown}"
