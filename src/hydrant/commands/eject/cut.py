"""A config -> the constants and the parts of its program."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Mapping
from typing import Any

from hydrant.clock import Interval
from hydrant.commands.eject.assemble import Constant, Parts, Written
from hydrant.commands.eject.layout import literal
from hydrant.commands.eject.schedule_parts import FieldSource, field_source
from hydrant.data.in_memory import InMemorySource
from hydrant.training.plan import Plan

_RUN, _DATA, _MODEL, _OPTIMIZER, _SCHEDULE = (
    "The run.",
    "The data.",
    "The model.",
    "The optimizer.",
    "The schedule.",
)


def cut(plan: Plan, folder: str) -> Parts:
    """Return what a prepared run needs besides the program.

    Raises:
        ConfigError: the config has a part that cannot be ejected.
    """
    return _Cutter(plan, folder).parts


class _Cutter:
    """Collects the constants and the parts of one config."""

    def __init__(self, plan: Plan, folder: str) -> None:
        self._plan, self._config = plan, plan.config
        self.parts = Parts({}, {}, {})
        self._set_run(folder)
        self._set_precision()
        self._set_data()
        self._set_model()
        self._set_loss()
        self._set_mixing()
        self._set_optimizer()
        self._know(ONLY_LR=True)
        self._set_schedules()
        self._set_average()

    def _constant(
        self, name: str, value: Any, comment: str = "", *, group: str, source: str | None = None
    ) -> str:
        """Add a constant, and return its name."""
        self.parts.constants[name] = Constant(literal(value) if source is None else source, comment, group)
        self.parts.known[name] = value
        return name

    def _know(self, **values: Any) -> None:
        self.parts.known |= values

    def _write(self, name: str, section: str, text: str, **imports: tuple[str, str | None]) -> None:
        self.parts.written[name] = Written(text, section, imports)

    def _arguments(
        self, node: Mapping[str, Any], group: str, prefix: str, leave_out: tuple[str, ...] = ()
    ) -> str:
        """Add a constant for each argument of a part; return the arguments of its call.

        Arguments that are None, True, False or text, and that the target has as its default, are left out.
        """
        target = pkgutil.resolve_name(node["_target_"])
        defaults = {name: p.default for name, p in inspect.signature(target).parameters.items()}
        words = list[str]()
        for name, value in node.items():
            if name.startswith("_") or name in leave_out:
                continue
            is_usual = (
                name in defaults and defaults[name] is not inspect.Parameter.empty and defaults[name] == value
            )
            if is_usual and (value is None or isinstance(value, bool | str)):
                continue
            constant = name.upper()
            if constant in self.parts.constants and self.parts.known[constant] != _plain(value):
                constant = f"{prefix}_{constant}"
            if constant not in self.parts.constants:
                self._constant(constant, _plain(value), group=group)
            words.append(f"{name}={constant}")
        return ", ".join(words)

    def _set_run(self, folder: str) -> None:
        config, plan = self._config, self._plan
        spec, clock = plan.spec, plan.clock
        self._constant(
            "FOLDER",
            folder,
            "for metrics.jsonl and checkpoints",
            group=_RUN,
            source=f"Path({literal(folder)})",
        )
        device = 'torch.device("cuda" if torch.cuda.is_available() else "cpu")'
        self._constant("DEVICE", spec.device, group=_RUN, source=device)
        self._constant("SEED", config["seed"], "of all random numbers", group=_RUN)
        self._constant(
            "NUM_UPDATES", clock.total_updates, f"optimizer steps: {config['duration']}", group=_RUN
        )
        self._constant("BATCH_SIZE", config["global_batch_size"], "samples per update", group=_RUN)
        self._constant("MICRO_BATCH_SIZE", spec.micro_batch_size, "samples per forward pass", group=_RUN)
        self._constant("EVAL_BATCH_SIZE", plan.splits["val"].batch_size, group=_RUN)
        self._know(
            ACCUMULATES=config["global_batch_size"] > spec.micro_batch_size,
            IS_MAX=config["best"]["mode"] == "max",
            CLIPS=False,
        )
        for key, word in {"log_every": "LOGS", "eval_every": "EVALS", "save_every": "SAVES"}.items():
            interval: Interval = getattr(plan.intervals, key)
            self._know(**{word: interval.is_on})
            if interval.is_on:
                exact = interval.rounded.__name__ == "rounded_up" or interval.length.denominator == 1
                self._know(ROUNDS_UP=exact)
                self._constant(key.upper(), interval.length, f"updates: {config[key]}", group=_RUN)
        self._constant(
            "BEST_METRIC", config["best"]["metric"], "decides which checkpoint is the best", group=_RUN
        )
        for key in ("max_grad_norm", "max_grad_value", "agc", "patience"):
            self._constant(key.upper(), config[key], group=_OPTIMIZER)
        self._constant("MAX_SKIPPED", config["max_skipped"], group=_RUN)

    def _set_precision(self) -> None:
        node = self._config["precision"]
        dtype = node["autocast"]
        self._constant("AUTOCAST", dtype, group=_RUN, source=f"torch.{dtype}")
        self._constant("MATMUL", node["matmul"], group=_RUN)
        self._know(SCALES_LOSS=node["scale_loss"])
        for key in ("init_scale", "growth_factor", "backoff_factor", "growth_interval"):
            self._constant(key.upper(), node[key], group="The loss scale.")

    def _set_data(self) -> None:
        plan, config, node = self._plan, self._config, self._config["data"]
        name, train = str(node["_target_"]).rpartition(".")[2], plan.train
        assert isinstance(train, InMemorySource)
        self._constant("NUM_SAMPLES", train.num_samples, "to train on", group=_DATA)
        self._constant("NUM_VAL_SAMPLES", plan.val.num_samples, "to evaluate on", group=_DATA)
        augment, is_bytes = node.get("augment") or {}, not train.inputs.is_floating_point()
        augments = bool(train.augment)
        self._know(AUGMENTS=augments, IS_BYTES=is_bytes, NORMALIZES=augments or is_bytes)
        self._know(CUTS_TEST=bool(node.get("test_ratio")), CUTS_VAL=bool(node.get("val_ratio")))
        self._know(
            LIMITS_TRAIN=config["limit_train_samples"] is not None,
            LIMITS_VAL=config["limit_val_samples"] is not None,
        )
        for key in ("root", "val_ratio", "test_ratio", "split_seed", "mean", "std"):
            if key in node:
                self._constant(key.upper(), _plain(node[key]), _COMMENTS.get(key, ""), group=_DATA)
        self._constant("MAX_SHIFT", augment.get("max_shift", 0), "pixels", group=_DATA)
        self._know(FLIP=augment.get("flip", False))
        self.parts.aliases["load_data"] = ("hydrant.commands.eject.program.data", f"load_{name}")

    def _set_model(self) -> None:
        node = self._config["model"]
        target = pkgutil.resolve_name(node["_target_"])
        self._know(HAS_BUFFERS=any(True for _ in self._plan.task.model.buffers()))
        name = target.__name__
        self._express(
            "make_model", f"{name}({self._arguments(node, _MODEL, 'MODEL')})", name, target.__module__
        )
        self.parts.known_in[name] = {key: _plain(value) for key, value in node.items() if key[0] != "_"}

    def _express(self, function: str, text: str, name: str, module: str) -> None:
        """Let an expression that uses a name of a module stand for calls of a function."""
        self.parts.expressions[function] = Written(text, "", {name: (module, name)})

    def _set_loss(self) -> None:
        node = self._config["task"]
        name = str(node["_target_"]).rpartition(".")[2]
        is_classification = name == "Classification"
        self._know(
            IS_CLASSIFICATION=is_classification,
            CLASS_WEIGHTS=node.get("class_weights"),
            LOSS=node.get("loss"),
            SQUEEZES=False,
            SMOOTHS=bool(node.get("label_smoothing")),
        )
        self._constant("LABEL_SMOOTHING", node.get("label_smoothing", 0.0), group="The loss.")
        self._constant("DELTA", node.get("delta"), group="The loss.")
        metrics = ("loss", "accuracy") if is_classification else ("loss", "mse", "mae")
        self._constant("METRICS", metrics, "what is measured in training and evaluation", group="The loss.")

    def _set_mixing(self) -> None:
        node = self._config["mixing"]
        mixes = not str(node["_target_"]).endswith("NoMixing")
        self._know(MIXES=mixes)
        if not mixes:
            return
        words = {**{key: value for key, value in node.items() if key[0] != "_"}, "label_smoothing": 0.0}
        for key in _MIXING:
            self._constant(key.upper(), _plain(words[key]), group="Mixing of samples.")
        names = [f"{key}={key.upper() if key in _MIXING else literal(value)}" for key, value in words.items()]
        text = f"Mixup({', '.join([*names, f'num_classes={self._plan.data.num_classes}'])})"
        self._express("make_mixup", text, "Mixup", "timm.data.mixup")

    def _set_optimizer(self) -> None:
        node = self._config["optimizer"]
        target = pkgutil.resolve_name(node["_target_"])
        [entry] = self._plan.optimizers.entries.values()
        kernel = (
            {"fused": True} if entry.optimizer.defaults.get("fused") and node.get("fused") is None else {}
        )
        arguments = self._arguments({**node, **kernel}, _OPTIMIZER, "OPTIMIZER")
        if kernel:
            del self.parts.constants["FUSED"]
            arguments = arguments.replace("fused=FUSED", "fused=True")
        name = target.__name__
        origin = target.__module__ if target.__module__.startswith("hydrant.") else "torch.optim"
        self._express("make_optimizer", f"{name}(model.parameters(), {arguments})", name, origin)

    def _set_schedules(self) -> None:
        schedules = self._plan.optimizers.schedules
        sources = list[FieldSource]()
        for key, field in schedules.fields.items():
            node = self._config["scheduler"]
            sources.append(field_source(node, self._plan.clock, field.name))
            del key
        [source] = sources
        for name, (value, comment) in source.constants.items():
            self._constant(name, value, comment, group=_SCHEDULE)
        for name, known in source.known_in.items():
            self.parts.known_in[name] = known
        self.parts.known |= source.known
        for name, (text, imports) in source.written.items():
            self._write(name, "schedule", text, **imports)

    def _set_average(self) -> None:
        node, group = self._config["averaging"], "The average of the weights."
        self._know(AVERAGES=self._plan.averaging.is_on)
        if not self._plan.averaging.is_on:
            return
        start = self._plan.clock.updates(node["start_after"], "averaging.start_after")
        self._know(
            EMA_WARMS_UP=node["warmup"], EXCLUDES_BUFFERS=node["exclude_buffers"], STARTS_LATER=start > 0
        )
        self._constant("EMA_DECAY", node["decay"], "weight of the old average in an update", group=group)
        self._constant("EMA_START", start, "updates after which the averaging begins", group=group)
        self._constant("MIN_EMA_DECAY", node["min_decay"], group=group)
        self._constant("EMA_WARMUP_GAMMA", node["warmup_gamma"], group=group)
        self._constant("EMA_WARMUP_POWER", node["warmup_power"], group=group)


_MIXING = ("mixup_alpha", "cutmix_alpha", "cutmix_minmax", "prob", "switch_prob")

_COMMENTS = {
    "val_ratio": "of the samples of each class",
    "split_seed": "of the division into training and validation samples",
    "mean": "of each channel",
    "std": "standard deviation of each channel",
}


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value
