"""The run: its folder, length, batches and intervals, its precision, and the average of its weights."""

from __future__ import annotations

from hydrant.clock import Interval
from hydrant.commands.eject.cutting.collector import Collector
from hydrant.commands.eject.layout import literal

_RUN = "The run."


def cut_run(collector: Collector, folder: str) -> None:
    """Add what is not a part of another subject."""
    config, plan = collector.config, collector.plan
    spec, clock = plan.spec, plan.clock
    comment = "for metrics.jsonl and checkpoints"
    collector.constant("FOLDER", folder, comment, group=_RUN, source=f"Path({literal(folder)})")
    device = 'torch.device("cuda" if torch.cuda.is_available() else "cpu")'
    collector.constant("DEVICE", spec.device, group=_RUN, source=device)
    collector.constant("SEED", config["seed"], "of all random numbers", group=_RUN)
    collector.constant(
        "NUM_UPDATES", clock.total_updates, f"optimizer steps: {config['duration']}", group=_RUN
    )
    collector.constant("BATCH_SIZE", config["global_batch_size"], "samples per update", group=_RUN)
    collector.constant("MICRO_BATCH_SIZE", spec.micro_batch_size, "samples per forward pass", group=_RUN)
    collector.constant("EVAL_BATCH_SIZE", plan.splits["val"].batch_size, group=_RUN)
    collector.know(
        ACCUMULATES=config["global_batch_size"] > spec.micro_batch_size,
        IS_MAX=config["best"]["mode"] == "max",
    )
    for key, word in {"log_every": "LOGS", "eval_every": "EVALS", "save_every": "SAVES"}.items():
        interval: Interval = getattr(plan.intervals, key)
        collector.know(**{word: interval.is_on})
        if interval.is_on:
            exact = interval.rounded.__name__ == "rounded_up" or interval.length.denominator == 1
            collector.know(ROUNDS_UP=exact)
            collector.constant(key.upper(), interval.length, f"updates: {config[key]}", group=_RUN)
    best = config["best"]["metric"]
    collector.constant("BEST_METRIC", best, "decides which checkpoint is the best", group=_RUN)
    collector.constant("MAX_SKIPPED", config["max_skipped"], group=_RUN)


def cut_precision(collector: Collector) -> None:
    """Add the number formats and the loss scale."""
    node = collector.config["precision"]
    dtype = node["autocast"]
    collector.constant("AUTOCAST", dtype, group=_RUN, source=f"torch.{dtype}")
    collector.constant("MATMUL", node["matmul"], group=_RUN)
    collector.know(SCALES_LOSS=node["scale_loss"])
    for key in ("init_scale", "growth_factor", "backoff_factor", "growth_interval"):
        collector.constant(key.upper(), node[key], group="The loss scale.")


def cut_averaging(collector: Collector) -> None:
    """Add the average of the weights, if the config has one."""
    plan, node, group = collector.plan, collector.config["averaging"], "The average of the weights."
    collector.know(AVERAGES=plan.averaging.is_on)
    if not plan.averaging.is_on:
        return
    start = plan.clock.updates(node["start_after"], "averaging.start_after")
    collector.know(
        EMA_WARMS_UP=node["warmup"], EXCLUDES_BUFFERS=node["exclude_buffers"], STARTS_LATER=start > 0
    )
    collector.constant("EMA_DECAY", node["decay"], "weight of the old average in an update", group=group)
    collector.constant("EMA_START", start, "updates after which the averaging begins", group=group)
    collector.constant("MIN_EMA_DECAY", node["min_decay"], group=group)
    collector.constant("EMA_WARMUP_GAMMA", node["warmup_gamma"], group=group)
    collector.constant("EMA_WARMUP_POWER", node["warmup_power"], group=group)
