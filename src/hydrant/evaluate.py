"""`evaluate`: a run's model on its validation set."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hydrant.config.arguments import Flags
from hydrant.errors import ConfigError


def main(arguments: Sequence[str]) -> int:
    """Print the metrics of a saved run; the exit status."""
    parser = Flags("evaluate")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--weights", default="model")
    options, rest = parser.split(arguments)
    if not rest or "=" in rest[0]:
        example = "hydrant evaluate outputs/lr_study"
        raise ConfigError("", f"evaluate what? Give a run folder or a checkpoint: {example}")
    from hydrant.evaluation import evaluate  # brings in torch
    from hydrant.saved import open_run
    from hydrant.trackers.record import finite

    saved = open_run(rest[0], rest[1:], weights=options.weights)
    p = saved.prepared
    p.precision.activate()
    p.world.activate()
    with p.world.group():
        values = evaluate(
            p.precision.prepare(p.task).to(p.world.device),
            p.val.batches(p.spec, p.config["eval_batch_size"]),
            p.precision,
            p.parallel,
            lambda task, batch: task(batch),
        )
    if options.json:
        shown = {"checkpoint": str(saved.checkpoint), "num_updates": saved.num_updates, **values}
        print(json.dumps(finite(shown)))
        return 0
    print(f"{saved.checkpoint} (update {saved.num_updates}), {p.val.num_samples:,} samples")
    for name, value in values.items():
        print(f"  {name:<20} {value:.6g}")
    return 0
