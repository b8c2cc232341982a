"""The words of Lightning, lightning-hydra-template, Hugging Face's Trainer and Keras: what to write here instead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hydrant.errors import nearest

_EPOCHS = "duration={value}ep"
_UPDATES = "duration={value}"
_LR = "optimizer.lr={value}"
_BATCH = (
    "global_batch_size={value} (per update, over all devices; one device feeds micro_batch_size at a time)"
)
_ACCUMULATION = "micro_batch_size=<global_batch_size / {value}> (on one device; accumulation follows from it)"
_CLIP = "max_grad_norm={value}"
_RANKS = "parallel.num_processes={value}"
_LOG, _EVAL, _SAVE = "log_every={value}", "eval_every={value}", "save_every={value}"
_RESUME = "resume={value} (a run folder or checkpoint; without it, the same command with name=... resumes)"
_DEVICE = "parallel=ddp (a GPU is used where there is one; CUDA_VISIBLE_DEVICES= in front trains on the CPU)"
_FP16 = {"": "precision=fp16", "false": "precision=fp32"}

PRECISIONS = {
    "bf16-mixed": "bf16", "16-mixed": "fp16", "32-true": "fp32", "32": "fp32", "16": "fp16", "bf16-true": "bf16_true",
    "transformer-engine": "fp8", "mixed_float16": "fp16", "mixed_bfloat16": "bf16", "float32": "fp32",
    "float16": "fp16", "bfloat16": "bf16", "amp": "fp16", "no": "fp32",
}  # fmt: skip

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "precision": {name: f"precision={option}" for name, option in PRECISIONS.items()},
    "tracker": {
        "csv": "tracker=local (metrics.jsonl is always written)", "none": "tracker=local",
        "many_loggers": "tracker=[wandb,tensorboard]", "all": "tracker=[wandb,tensorboard]",
    },
    "optimizer": {
        "adamw_torch": "optimizer=adamw", "adamw_torch_fused": "optimizer=adamw", "adamw_hf": "optimizer=adamw",
    },
    "scheduler": {
        "constant_with_warmup": "scheduler=constant scheduler.warmup=5%",
        "cosine_with_restarts": "scheduler=cosine_restarts", "CosineAnnealingLR": "scheduler=cosine",
        "OneCycleLR": "scheduler=one_cycle", "StepLR": "scheduler=step", "LinearLR": "scheduler=linear",
        "reduce_lr_on_plateau": "scheduler=plateau", "ReduceLROnPlateau": "scheduler=plateau",
    },
    "compile": {"True": "compile=default", "False": "compile=eager"},
}  # fmt: skip
"""Options that others have: group -> option -> what to write."""

KEYS: Mapping[str, str | Mapping[str, str]] = {
    "lr": _LR, "learning_rate": _LR, "model.lr": _LR, "model.optimizer.lr": _LR, "model.learning_rate": _LR,
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
    "accumulate_grad_batches": _ACCUMULATION, "gradient_accumulation_steps": _ACCUMULATION,
    "gradient_clip_val": _CLIP, "clip_grad": _CLIP, "grad_clip": _CLIP, "clip_grad_norm": _CLIP, "clipnorm": _CLIP,
    "ckpt_path": _RESUME, "resume_from_checkpoint": _RESUME,
    "pretrained_ckpt": "init_from={value}", "load_weights": "init_from={value}",
    "logger": {"": "tracker={value}"} | OPTIONS["tracker"], "report_to": {"": "tracker={value}"} | OPTIONS["tracker"],
    "logger.wandb.project": "tracker.project={value}", "logger.wandb.offline": "tracker.mode=offline",
    "callbacks": {
        "": "hook={value} (checkpoints are save_every and keep_best, early stopping is patience)",
        "early_stopping": "patience=5 (evaluations without a new best)",
        "model_checkpoint": "save_every=1ep keep_best=1", "default": "save_every=1ep keep_best=1",
        "ema": "averaging=ema",
    },
    "callbacks.early_stopping.patience": "patience={value}", "early_stopping_patience": "patience={value}",
    "callbacks.model_checkpoint.monitor": "best.metric={value}", "monitor": "best.metric={value}",
    "metric_for_best_model": "best.metric={value}", "save_total_limit": "keep_last={value}",
    "trainer": {
        "": "parallel={value}", "gpu": _DEVICE, "cpu": _DEVICE, "mps": _DEVICE,
        "default": "duration=10ep (the trainer's settings are top-level keys)",
    },
    "devices": _RANKS, "gpus": _RANKS, "nproc_per_node": _RANKS, "accelerator": _DEVICE, "device": _DEVICE,
    "strategy": "parallel={value}", "trainer.precision": {"": "precision={value}"} | OPTIONS["precision"],
    "fp16": _FP16, "amp": _FP16, "use_amp": _FP16, "bf16": {"": "precision=bf16", "false": "precision=fp32"},
    "torch_compile": {"": "compile=default", "false": "compile=eager"},
    "check_val_every_n_epoch": f"{_EVAL}ep", "val_check_interval": "eval_every=500", "eval_steps": _EVAL,
    "save_steps": _SAVE, "logging_steps": _LOG, "log_every_n_steps": _LOG, "log_interval": _LOG,
    "fast_dev_run": {"": "debug=smoke", "false": "debug=null (the default, so leave it out)"},
    "overfit_batches": "debug=overfit",
    "limit_train_batches": "limit_train_samples=<number of samples>",
    "limit_val_batches": "limit_val_samples=<number of samples>",
    "limit_test_batches": "limit_test_samples=<number of samples>",
    "test": {"": "test_at_end={value}"}, "do_test": "test_at_end={value}", "num_folds": "folds={value}",
    "k_folds": "folds={value}", "n_splits": "folds={value}", "fold_idx": "fold={value}",
    "trainer.deterministic": {"": "deterministic=true", "false": "deterministic=false"},
    "seed_everything": "seed={value}", "random_seed": "seed={value}",
    "hparams_search": "--multirun sweep=optuna", "dataset": "data={value}", "datamodule": "data={value}",
    "net": "model={value}", "arch": "model={value}", "run_name": "name={value}", "task_name": "name={value}",
    "output_dir": "hydra.run.dir={value}", "label_smoothing_factor": "task.label_smoothing={value}",
}  # fmt: skip
"""Keys that others have: key -> what to write, or value -> what to write ("" for any other value)."""

_PREFIXES = ("trainer.", "training.", "args.", "training_args.", "hparams.")


def own_words(key: str, value: str) -> str | None:
    """Return what to write instead of `key=value` of another framework; None if it is no such word.

    >>> own_words("trainer.max_epochs", "10"), own_words("seed", "1")
    ('duration=10ep', None)
    >>> own_words("logger", "csv")
    'tracker=local (metrics.jsonl is always written)'
    """
    prefix = next((prefix for prefix in _PREFIXES if key.startswith(prefix)), "")
    words = KEYS.get(key) or KEYS.get(key.removeprefix(prefix))
    if words is None:
        return None
    template = words if isinstance(words, str) else words.get(value) or words.get(value.lower()) or words[""]
    values = [value] if re.match(r"[\[{'\"$]|\w+\(", value) else value.split(",")  # of a sweep: 10ep,20ep
    return re.sub(r"\{value\}(\w*)", lambda match: ",".join(item + match[1] for item in values), template)


def own_option(group: str, option: str, options: Sequence[str]) -> str | None:
    """Return what to write instead of an option that a group does not have; None if it is no known word.

    A model of timm or torchvision is looked up there only if no option is similar to its name, because the import of
    both takes seconds.
    """
    known = OPTIONS.get(group, {}).get(option)
    if known is not None or group != "model" or nearest(option, options):
        return known
    import timm
    from torchvision.models import list_models

    if timm.is_model(option):
        return f"model=timm model.name={option}"
    node = f"{{_target_: torchvision.models.{option}, num_classes: ${{data.num_classes}}}}"
    return f"~model '+model={node}'" if option in list_models() else None
