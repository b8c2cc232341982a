"""The words of Lightning, lightning-hydra-template, Hugging Face's Trainer and Keras: what to write here instead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hydrant.checks import nearest

_EPOCHS = "duration={value}ep"
_UPDATES = "duration={value}"
_LR = "optimizer.lr={value}"
_BATCH = (
    "global_batch_size={value} (per update, over all devices; one device feeds micro_batch_size at a time)"
)
_ACCUMULATION = "micro_batch_size=<global_batch_size / {value}> (on one device; accumulation follows from it)"
_CLIP = "max_grad_norm={value}"
_RANKS = {
    "": "parallel.num_processes={value}",
    "auto|-1": "parallel.num_processes=<number of GPUs> (a number is needed)",
    r"\[([\d, ]+)\]": (
        "put CUDA_VISIBLE_DEVICES={1} in front of the command, and write parallel.num_processes=<number of GPUs>"
    ),
}
_LOG, _EVAL, _SAVE = "log_every={value}", "eval_every={value}", "save_every={value}"
_RESUME = "resume={value} (a run folder or checkpoint; without it, the same command with name=... resumes)"
_DEVICE = {
    "": "leave it out (a GPU is used where there is one, otherwise the CPU)",
    "cpu": "put CUDA_VISIBLE_DEVICES= in front of the command, which hides the GPUs",
    r"cuda:(\d+)": "put CUDA_VISIBLE_DEVICES={1} in front of the command",
}
_STRATEGY = {
    "": "parallel=ddp (or fsdp, hsdp, single)", "ddp|fsdp|hsdp|single": "parallel={value}",
    "deepspeed.*": "parallel=fsdp", "ddp_sim": "parallel.num_processes=2",
    "ddp_find_unused_parameters_true": "parallel.find_unused_parameters=true", r"ddp_\w+": "parallel=ddp",
}  # fmt: skip
_METRIC = {
    "": "best.metric={value}", r"((val|eval)[_/])?acc(uracy)?": "best.metric=val/accuracy",
    r"(?:(?:val|eval)[_/])?(\w+)": "best.metric=val/{1}",
}  # fmt: skip
_PATIENCE = "patience={value} eval_every=1ep (patience counts evaluations; by default, one each 5 epochs)"
_LOSS = {
    "": "task.loss._target_={value} task=supervised",
    r"bce\w*|binary_cross_?entropy\w*": "task=classification task.multi_label=true",
    r"(\w*_)?cross_?entropy(_?loss)?|ce|nll": "task=classification (the default, so leave it out)",
    r"mse(_?loss)?|l2|mean_squared_error": "task=regression", "huber(_?loss)?": "task=regression task.loss=huber",
    r"mae|l1(_?loss)?|mean_absolute_error": "task=regression task.loss=mae",
}  # fmt: skip
_WEIGHTS = "task.class_weights={value}"
_METRICS = "'+task.metrics.f1={_target_: torchmetrics.classification.MulticlassF1Score, num_classes: 10}'"
_AVERAGING = {"": "averaging=ema", "false": "averaging=none"}
_SMOKE = {"": "debug=smoke", "false": "leave it out"}
_FP16 = {"": "precision=fp16", "false": "precision=fp32"}

PRECISIONS = {
    "bf16-mixed": "bf16", "16-mixed": "fp16", "32-true": "fp32", "32": "fp32", "16": "fp16", "bf16-true": "bf16_true",
    "transformer-engine": "fp8", "mixed_float16": "fp16", "mixed_bfloat16": "bf16", "float32": "fp32",
    "float16": "fp16", "bfloat16": "bf16", "amp": "fp16", "no": "fp32",
    "64-true": "fp64", "64": "fp64", "float64": "fp64", "double": "fp64",
}  # fmt: skip

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "precision": {name: f"precision={option}" for name, option in PRECISIONS.items()},
    "tracker": {
        "csv": "tracker=local (metrics.jsonl is always written)", "none|false": "tracker=local",
        "many_loggers": "tracker=[wandb,tensorboard]", "all": "tracker=[wandb,tensorboard]",
        r"\[(?:csv, ?)?(?!csv)(\w+)(?:, ?csv)?\]": "tracker={1} (metrics.jsonl is always written)",
    },
    "debug": {"default": "debug=smoke", "fdr": "debug=smoke", "profiler": "debug=profile"},
    "optimizer": {
        "adamw_torch": "optimizer=adamw", "adamw_torch_fused": "optimizer=adamw", "adamw_hf": "optimizer=adamw",
    },
    "task": {pattern: text for pattern, text in _LOSS.items() if pattern}
    | {"(?:causal_)?lm|language_model": "task=language_modeling"},
    "scheduler": {
        "constant_with_warmup": "scheduler=constant scheduler.warmup=5%",
        "cosine_(?:with_)?warmup|warmup_cosine": "scheduler=cosine scheduler.warmup=5%",
        "cosine_with_restarts": "scheduler=cosine_restarts", "CosineAnnealingLR": "scheduler=cosine",
        "OneCycleLR": "scheduler=one_cycle", "StepLR": "scheduler=step", "LinearLR": "scheduler=linear",
        "reduce_lr_on_plateau": "scheduler=plateau", "ReduceLROnPlateau": "scheduler=plateau",
    },
    "compile": {"True": "compile=default", "False": "compile=eager"},
    "hydra/launcher": {"joblib": "hydra/launcher=local"},
}  # fmt: skip
"""Options of other frameworks: group -> pattern of the option -> what to write."""

CALLBACKS: Mapping[str, str] = {
    "": "choose a hook, such as hook=diagnostics, or write one of your own (`hydrant init` writes an example)",
    "early_?stopping": _PATIENCE.format(value=5),
    "model_?checkpoint|default": "save_every=1ep keep_best=1",
    "ema.*|weight_?averaging|swa|stochastic_?weight_?averaging": "averaging=ema",
    "backbone_?finetuning": "hook=freeze 'hooks.freeze.stages=[{match: backbone, until: 2ep}]'",
    "learning_?rate_?finder|lr_finder": "debug=lr_finder",
    "timer": "hook=stop_at hooks.stop_at.time=12h",
    "learning_?rate_?monitor|lr_monitor": "leave it out (optim/lr is logged every log_every)",
    "(rich_?|tqdm_?)?progress_?bar": "leave it out (a terminal shows a progress bar)",
    "(rich_?)?model_?summary": "leave it out (hydrant preview describes the model)",
    "none": "leave it out",
}
"""Callbacks of other frameworks: pattern of the name -> what to write; "" for any other name."""

KEYS: Mapping[str, str | Mapping[str, str]] = {
    "lr": _LR, "learning_rate": _LR, "model.lr": _LR, "model.optimizer.lr": _LR, "model.learning_rate": _LR,
    "optimizer.learning_rate": _LR,
    "weight_decay": "optimizer.weight_decay={value}", "model.optimizer.weight_decay": "optimizer.weight_decay={value}",
    "optim": {"": "optimizer={value}"} | OPTIONS["optimizer"],
    "lr_scheduler": {"": "scheduler={value}"} | OPTIONS["scheduler"],
    "lr_scheduler_type": {"": "scheduler={value}"} | OPTIONS["scheduler"],
    "warmup_steps": "scheduler.warmup={value}", "num_warmup_steps": "scheduler.warmup={value}",
    "warmup_epochs": "scheduler.warmup={value}ep", "warmup_ratio": "scheduler.warmup=5% (a part of the run)",
    "epochs": _EPOCHS, "max_epochs": _EPOCHS, "num_epochs": _EPOCHS, "n_epochs": _EPOCHS, "num_train_epochs": _EPOCHS,
    "steps": _UPDATES, "max_steps": _UPDATES, "num_steps": _UPDATES, "total_steps": _UPDATES,
    "batch_size": _BATCH, "data.batch_size": _BATCH, "train_batch_size": _BATCH, "per_device_train_batch_size": _BATCH,
    "val_batch_size": "eval_batch_size={value}", "per_device_eval_batch_size": "eval_batch_size={value}",
    "accumulate_grad_batches": _ACCUMULATION, "gradient_accumulation_steps": _ACCUMULATION, "accumulate": _ACCUMULATION,
    "gradient_clip_val": _CLIP, "clip_grad": _CLIP, "grad_clip": _CLIP, "clip_grad_norm": _CLIP, "clipnorm": _CLIP,
    "ckpt_path": _RESUME, "resume_from_checkpoint": _RESUME,
    "pretrained_ckpt": "init_from={value}", "load_weights": "init_from={value}",
    "logger": {"": "tracker={value}"} | OPTIONS["tracker"], "report_to": {"": "tracker={value}"} | OPTIONS["tracker"],
    "logger.wandb.project": "tracker.project={value}", "logger.wandb.offline": "tracker.mode=offline",
    "callbacks": CALLBACKS, "early_stopping": CALLBACKS["early_?stopping"], "early_stopping_patience": _PATIENCE,
    "early_stopping.patience": _PATIENCE, "early_stopping.monitor": _METRIC, "early_stopping.mode": "best.mode={value}",
    "model_checkpoint": "save_every=1ep keep_best=1", "model_checkpoint.every_n_epochs": f"{_SAVE}ep",
    "model_checkpoint.every_n_train_steps": _SAVE, "model_checkpoint.save_top_k": "keep_best={value}",
    "model_checkpoint.save_last": "leave it out (keep_last=2 is the default)",
    "model_checkpoint.monitor": _METRIC, "model_checkpoint.mode": "best.mode={value}", "monitor": _METRIC,
    "mode": "best.mode={value}", "loss": _LOSS, "criterion": _LOSS, "metrics": _METRICS, "class_weight": _WEIGHTS,
    "metric_for_best_model": _METRIC, "save_total_limit": "keep_last={value}",
    "trainer": {
        "": "there is no trainer; its settings are keys at the top level, which `hydrant explain` shows",
        "gpu|mps": _DEVICE[""], "cpu": _DEVICE["cpu"],
        "default": "duration=10ep (the trainer's settings are top-level keys)",
    } | {name: text for name, text in _STRATEGY.items() if name},
    "num_nodes": {"": "start the ranks with torchrun --nnodes={value} --nproc-per-node=<GPUs>", "1": "leave it out"},
    "enable_progress_bar": "leave it out (only a terminal shows a progress bar)",
    "enable_model_summary": CALLBACKS["(rich_?)?model_?summary"],
    "enable_checkpointing": {"": "save_every=5ep (the default, so leave it out)", "false": "save_every=null"},
    "max_time": {
        "": "hook=stop_at hooks.stop_at.time=2h (or 90s, 30min, 1d)",
        r"0*(\d+):00:00:00": "hook=stop_at hooks.stop_at.time={1}d",
        r"00:0*(\d+):00:00": "hook=stop_at hooks.stop_at.time={1}h",
        r"00:00:0*(\d+):00": "hook=stop_at hooks.stop_at.time={1}min",
    },
    "trainer.profiler": {"": "profiler=torch", "null|none|false": "profiler=none (the default, so leave it out)"},
    "num_sanity_val_steps": "leave it out (a run evaluates before its first update; debug=smoke tries every part)",
    "min_epochs": "leave it out (a run without patience trains for its whole duration)",
    "default_root_dir": "hydra.run.dir={value} (or name=... for outputs/...)",
    "benchmark": "cudnn_benchmark={value}", "sync_batchnorm": "parallel.sync_batch_norm={value} (needs CUDA)",
    "gradient_clip_algorithm": {"": "max_grad_norm=<gradient_clip_val>", "value": "max_grad_value=<gradient_clip_val>"},
    "swa": _AVERAGING, "ema": _AVERAGING, "dropout": "model.dropout={value} (if the model has it)",
    "num_workers": "data.num_workers={value} (if the data set has it; data=digits is in memory)",
    "train": {"": "leave it out (a run trains)", "false": "use another command: hydrant evaluate RUN [--split test]"},
    "devices": _RANKS, "gpus": _RANKS, "nproc_per_node": _RANKS, "accelerator": _DEVICE, "device": _DEVICE,
    "strategy": _STRATEGY, "trainer.precision": {"": "precision={value}"} | OPTIONS["precision"],
    "fp16": _FP16, "amp": _FP16, "use_amp": _FP16, "bf16": {"": "precision=bf16", "false": "precision=fp32"},
    "torch_compile": {"": "compile=default", "false": "compile=eager"},
    "check_val_every_n_epoch": f"{_EVAL}ep", "eval_steps": _EVAL,
    "val_check_interval": {
        "": "eval_every=500 (updates, or 0.5ep for half an epoch)", r"\d+": _EVAL,
        r"0?\.(\d+)": "eval_every=0.{1}ep (a part of an epoch)", r"1\.0*": "eval_every=1ep",
    },
    "save_steps": _SAVE, "logging_steps": _LOG, "log_every_n_steps": _LOG, "log_interval": _LOG,
    "fast_dev_run": _SMOKE, "overfit_batches": "debug=overfit",
    "data.label_noise": "label_noise={value}",
    "limit_train_batches": "limit_train_samples=<number of samples>",
    "limit_val_batches": "limit_val_samples=<number of samples>",
    "limit_test_batches": "limit_test_samples=<number of samples>",
    "test": "test_at_end={value}", "do_test": "test_at_end={value}", "num_folds": "folds={value}",
    "k_folds": "folds={value}", "n_splits": "folds={value}", "fold_idx": "fold={value}",
    "trainer.deterministic": {"": "deterministic=true", "false": "deterministic=false"},
    "seed_everything": "seed={value}", "random_seed": "seed={value}",
    "max_runs": "hydra.sweeper.max_runs={value}", "max_trials": "hydra.sweeper.max_runs={value}",
    "max_seconds": "hydra.sweeper.max_seconds={value}", "stop_if": "hook=stop_if hooks.stop_if.rule=\"{value}\"",
    "hparams_search": "--multirun sweep=optuna", "dataset": "data={value}", "datamodule": "data={value}",
    "net": "model={value}", "arch": "model={value}", "run_name": "name={value}", "task_name": "name={value}",
    "output_dir": "hydra.run.dir={value}", "label_smoothing_factor": "task.label_smoothing={value}",
}  # fmt: skip
"""Keys of other frameworks: key -> what to write, or pattern of the value -> what to write ("" for any other value).

What to write is an override, or a sentence. {value} is the value, {1} the first group of the pattern.
"""

_PREFIXES = ("trainer.", "training.", "args.", "training_args.", "hparams.", "callbacks.")
_MOVED = {
    "model.optimizer": "optimizer", "model.scheduler": "scheduler", "model.net": "model", "logger.wandb": "tracker",
}  # fmt: skip
"""Nodes of other frameworks whose keys are mostly the same here: node -> our node."""


def own_words(key: str, value: str) -> str | None:
    """Return what to do instead of writing `key=value` of another framework; None if the word is unknown.

    >>> own_words("trainer.max_epochs", "10"), own_words("seed", "1")
    ('write duration=10ep', None)
    >>> own_words("logger", "csv")
    'write tracker=local (metrics.jsonl is always written)'
    >>> own_words("accelerator", "gpu")
    'leave it out (a GPU is used where there is one, otherwise the CPU)'
    """
    prefix = next((prefix for prefix in _PREFIXES if key.startswith(prefix)), "")
    words = KEYS.get(key) or KEYS.get(key.removeprefix(prefix))
    if words is not None:
        return _answers(words, value)
    root, dot, _ = key.partition(".")
    return _answers(KEYS[root], "") if dot and root in ("trainer", "callbacks") else None


def moved_key(key: str, value: str) -> str | None:
    """Return what to write instead of a key below a node that only other frameworks have; None if it is unknown.

    >>> moved_key("model.net.width", "3")
    'write model.width=3'
    """
    node, _, name = key.rpartition(".")
    return f"write {_MOVED[node]}.{name}={value}" if node in _MOVED else None


def _answers(words: str | Mapping[str, str], value: str) -> str:
    """Return the answer for a value, or those for the names in a list of callbacks."""
    if words is CALLBACKS and re.fullmatch(r"\[[\w, ]+\]", value):
        return "; ".join(dict.fromkeys(_answer(CALLBACKS, name) for name in re.findall(r"\w+", value)))
    return _answer({"": words} if isinstance(words, str) else words, value)


def _answer(words: Mapping[str, str], value: str) -> str:
    matches = (
        (re.fullmatch(pattern, value, re.IGNORECASE), text) for pattern, text in words.items() if pattern
    )
    match, template = next(((match, text) for match, text in matches if match), (None, words[""]))
    values = [value] if re.match(r"[\[{'\"$]|\w+\(", value) else value.split(",")  # of a sweep: 10ep,20ep
    if match and match.lastindex:
        template = template.replace("{1}", match[1])
    text = re.sub(r"\{value\}(\w*)", lambda place: ",".join(item + place[1] for item in values), template)
    return f"write {text}" if is_override(template) else text


def is_override(text: str) -> bool:
    """Whether a text of the tables begins with an override. Otherwise it is a sentence.

    >>> is_override("duration={value}ep"), is_override("leave it out")
    (True, False)
    """
    return text.startswith("--") or "=" in text.partition(" ")[0]


def own_option(group: str, option: str, options: Sequence[str]) -> str | None:
    """Return what to do instead of choosing an option that a group does not have; None if the word is unknown.

    `torch.optim.AdamW` is the option `adamw`. A model of timm or torchvision is looked up there only if no option is
    similar to its name, because the import of both takes seconds.
    """
    name = option.rpartition(".")[2]
    if known := _answer({"": "", **OPTIONS.get(group, {})}, name):
        return known
    same = [own for own in options if own.replace("_", "") == name.replace("_", "").lower()]
    if same:
        return f"write {group}={same[0]}"
    if group != "model" or nearest(option, options):
        return None
    import timm
    from torchvision.models import list_models

    if timm.is_model(option):
        return f"write model=timm model.name={option}"
    node = f"{{_target_: torchvision.models.{option}, num_classes: ${{data.num_classes}}}}"
    return f"write ~model '+model={node}'" if option in list_models() else None
