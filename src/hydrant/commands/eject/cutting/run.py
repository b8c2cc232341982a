"""The run: folder, length, batches and intervals, precision, the mixing of samples, and the average of the weights."""

from __future__ import annotations

import re
from fractions import Fraction

import torch

from hydrant.clock import Interval
from hydrant.clock.interval import rounded_up
from hydrant.commands.eject.cutting.collector import Collector, plain
from hydrant.commands.eject.layout import keyword, literal
from hydrant.errors import ConfigError
from hydrant.models.blocks import repeated_blocks
from hydrant.training.prepare.memory_format import uses_channels_last

RUN = "The run."


def cut_run(collector: Collector, folder: str) -> None:
    """Add what is not a part of another subject."""
    config, plan = collector.config, collector.plan
    spec, clock = plan.spec, plan.clock
    comment = "for metrics.jsonl and checkpoints; a new one for other settings"
    collector.constant("FOLDER", folder, comment, group=RUN, source=f"Path({literal(folder)})")
    device = 'torch.device("cuda" if torch.cuda.is_available() else "cpu")'
    collector.constant("DEVICE", spec.device, group=RUN, source=device)
    del collector.parts.known["DEVICE"]  # the program may run on another one
    collector.constant("SEED", config["seed"], "of all random numbers", group=RUN)
    comment = _with_duration("optimizer steps", config["duration"])
    collector.constant("NUM_UPDATES", clock.total_updates, comment, group=RUN)
    collector.constant("NUM_SAMPLES", plan.train.num_samples, "to train on", group=RUN)
    batch_size = spec.batch_sizes.value(0)
    collector.constant("BATCH_SIZE", batch_size, "samples per update", group=RUN)
    collector.constant("MICRO_BATCH_SIZE", spec.micro_batch_size, "samples per forward pass", group=RUN)
    comment = "samples per forward pass in evaluations"
    eval_batch_size = config["eval_batch_size"] if config["test_at_end"] else plan.splits["val"].batch_size
    collector.constant("EVAL_BATCH_SIZE", eval_batch_size, comment, group=RUN)
    collector.know(ACCUMULATES=batch_size > spec.micro_batch_size, IS_MAX=config["best"]["mode"] == "max")
    collector.know(ROUNDS_UP=True)
    for key, word in {"log_every": "LOGS", "eval_every": "EVALS", "save_every": "SAVES"}.items():
        interval: Interval = getattr(plan.intervals, key)
        collector.know(**{word: interval.is_on})
        if interval.is_on:
            exact = interval.rounded is rounded_up or interval.length.denominator == 1
            collector.know(ROUNDS_UP=exact and collector.parts.known["ROUNDS_UP"])
            unit = "updates" if interval.length.denominator == 1 else "updates, exact"
            source = literal(interval.length)
            epochs = re.fullmatch(r"(\d+)ep", str(config[key]))
            if epochs and interval.length.denominator > 1:
                source = f"Fraction({epochs[1]} * NUM_SAMPLES, BATCH_SIZE)"
                assert interval.length == Fraction(int(epochs[1]) * plan.train.num_samples, batch_size)
            comment = _with_duration(unit, config[key])
            collector.constant(key.upper(), interval.length, comment, group=RUN, source=source)
    best = config["best"]["metric"]
    collector.constant("BEST_METRIC", best, "decides which checkpoint is the best", group=RUN)
    comment = "evaluations without a new best that end the run"
    collector.constant("PATIENCE", config["patience"], comment, group=RUN)
    is_deterministic, times = config["deterministic"], config["cudnn_benchmark"]
    times_kernels = not is_deterministic if times == "auto" else times
    collector.know(DETERMINISTIC=is_deterministic, TIMES_KERNELS=times_kernels)
    _cut_memory_format(collector)
    scales = config["precision"]["scale_loss"]
    kind = "whose gradients may overflow" if scales else "that may have NaN or infinity"
    collector.constant("MAX_SKIPPED", config["max_skipped"], f"updates in a row {kind}", group=RUN)


def _cut_memory_format(collector: Collector) -> None:
    """Add the rule by which convolutions compute in `channels_last`."""
    plan, setting = collector.plan, collector.config["memory_format"]
    of_device = {
        kind: uses_channels_last(setting, plan.task, plan.precision, plan.parallel, torch.device(kind))
        for kind in ("cpu", "cuda")
    }
    collector.know(CHANNELS_LAST=of_device["cpu"], CHANNELS_LAST_ON_CUDA=of_device["cuda"])


def _with_duration(unit: str, duration: object) -> str:
    """Return a comment with a duration that is given in another unit: `updates; 5 epochs`."""
    match = re.fullmatch(r"([\d.]+)\s*(ep|sa|%)", str(duration))
    if match is None:
        return unit
    word = {"ep": " epochs", "sa": " samples", "%": "% of the run"}[match[2]]
    return f"{unit}; {match[1]}{word.removesuffix('s') if match[1] == '1' and match[2] != '%' else word}"


def cut_precision(collector: Collector) -> None:
    """Add the number formats and the loss scale."""
    node = collector.config["precision"]
    dtype = node["autocast"]
    collector.constant("AUTOCAST", dtype, group=RUN, source=f"torch.{dtype}")
    collector.constant("MATMUL", node["matmul"], group=RUN)
    skips = collector.config["skip_non_finite"]
    collector.know(SCALES_LOSS=node["scale_loss"], SKIPS_NON_FINITE=skips)
    collector.know(COUNTS_SKIPPED=skips or node["scale_loss"])
    for key in ("init_scale", "growth_factor", "backoff_factor", "growth_interval"):
        collector.constant(key.upper(), node[key], group="The loss scale.")


def cut_averaging(collector: Collector) -> None:
    """Add the average of the weights, if the config has one."""
    plan, node, group = collector.plan, collector.config["averaging"], "The average of the weights."
    collector.know(AVERAGES=plan.averaging.is_on)
    if not plan.averaging.is_on:
        return
    is_tail = str(node["_target_"]).endswith("TailAverage")
    collector.know(IS_TAIL=is_tail, EXCLUDES_BUFFERS=node.get("exclude_buffers", False))
    if is_tail:
        start = plan.clock.updates(node["start"], "averaging.start")
        every = plan.clock.since(start).interval(node["every"], "averaging.every").length
        if every.denominator > 1:
            message = f"{node['every']} are {float(every):g} updates; only a whole number can be ejected yet"
            raise ConfigError("averaging.every", message)
        collector.constant("TAIL_START", start, "updates before the tail that is averaged", group=group)
        comment = "updates from one of the averaged weights to the next"
        collector.constant("TAIL_EVERY", every, comment, group=group)
        return
    start = plan.clock.updates(node["start_after"], "averaging.start_after")
    collector.know(EMA_WARMS_UP=node["warmup"], STARTS_LATER=start > 0)
    collector.constant("EMA_DECAY", node["decay"], "weight of the old average in an update", group=group)
    collector.constant("EMA_START", start, "updates after which the averaging begins", group=group)
    collector.constant("MIN_EMA_DECAY", node["min_decay"], group=group)
    collector.constant("EMA_WARMUP_GAMMA", node["warmup_gamma"], group=group)
    collector.constant("EMA_WARMUP_POWER", node["warmup_power"], group=group)


def cut_compilation(collector: Collector) -> None:
    """Add what is compiled, if the config compiles."""
    node = collector.config["compile"]
    compiles = not str(node["_target_"]).endswith("Eager")
    scope = node.get("scope")
    collector.know(COMPILES=compiles, SAME_RANDOM=node.get("same_random"))
    collector.know(COMPILES_LOSS=compiles and scope == "task")
    collector.know(COMPILES_MODEL=compiles and scope == "model", RUNS_COMPILED=compiles and scope != "task")
    if not compiles:
        return
    settings = {"options": node["options"]} if node["options"] else {"mode": node["mode"]}
    settings |= {"backend": node["backend"], "fullgraph": node["fullgraph"] in (True, "auto")}
    settings |= {} if node["dynamic"] is None else {"dynamic": node["dynamic"]}
    collector.constant("COMPILE", settings, "arguments of torch.compile", group="Compilation.")
    if scope == "blocks":
        names = {id(module): name for name, module in collector.plan.task.model.named_modules()}
        blocks = tuple(names[id(block)] for block in repeated_blocks(collector.plan.task.model))
        collector.constant("BLOCKS", blocks, "the repeated parts of the model", group="Compilation.")


_MIXING = ("mixup_alpha", "cutmix_alpha", "cutmix_minmax", "prob", "switch_prob")


def cut_mixing(collector: Collector) -> None:
    """Add mixup and CutMix, if the config has them."""
    node = collector.config["mixing"]
    mixes = not str(node["_target_"]).endswith("NoMixing")
    collector.know(MIXES=mixes)
    if not mixes:
        return
    words = {**{key: value for key, value in node.items() if key[0] != "_"}, "label_smoothing": 0.0}
    for key in _MIXING:
        collector.constant(key.upper(), plain(words[key]), group="Mixing of samples.")
    names = [keyword(key, key.upper() if key in _MIXING else literal(value)) for key, value in words.items()]
    text = f"Mixup({', '.join([*names, f'num_classes={collector.plan.data.num_classes}'])})"
    collector.express("make_mixup", text, Mixup=("timm.data.mixup", "Mixup"))
