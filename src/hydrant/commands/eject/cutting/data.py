"""The data and the mixing of samples."""

from __future__ import annotations

from hydrant.commands.eject.cutting.collector import Collector, plain
from hydrant.commands.eject.layout import literal
from hydrant.data.in_memory import InMemorySource

_DATA = "The data."
_MIXING = ("mixup_alpha", "cutmix_alpha", "cutmix_minmax", "prob", "switch_prob")
_COMMENTS = {
    "val_ratio": "of the samples of each class",
    "split_seed": "of the division into training and validation samples",
    "mean": "of each channel",
    "std": "standard deviation of each channel",
}


def cut_data(collector: Collector) -> None:
    """Add the data set and what happens to its samples."""
    plan, config, node = collector.plan, collector.config, collector.config["data"]
    name, train = str(node["_target_"]).rpartition(".")[2], plan.train
    assert isinstance(train, InMemorySource)
    collector.constant("NUM_SAMPLES", train.num_samples, "to train on", group=_DATA)
    collector.constant("NUM_VAL_SAMPLES", plan.val.num_samples, "to evaluate on", group=_DATA)
    augment, is_bytes = node.get("augment") or {}, not train.inputs.is_floating_point()
    augments = bool(train.augment)
    collector.know(AUGMENTS=augments, IS_BYTES=is_bytes, NORMALIZES=augments or is_bytes)
    collector.know(CUTS_TEST=bool(node.get("test_ratio")), CUTS_VAL=bool(node.get("val_ratio")))
    collector.know(
        LIMITS_TRAIN=config["limit_train_samples"] is not None,
        LIMITS_VAL=config["limit_val_samples"] is not None,
    )
    for key in ("root", "val_ratio", "test_ratio", "split_seed", "mean", "std"):
        if key in node:
            collector.constant(key.upper(), plain(node[key]), _COMMENTS.get(key, ""), group=_DATA)
    collector.constant("MAX_SHIFT", augment.get("max_shift", 0), "pixels", group=_DATA)
    collector.know(FLIP=augment.get("flip", False))
    collector.parts.aliases["load_data"] = ("hydrant.commands.eject.program.data", f"load_{name}")


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
    names = [f"{key}={key.upper() if key in _MIXING else literal(value)}" for key, value in words.items()]
    text = f"Mixup({', '.join([*names, f'num_classes={collector.plan.data.num_classes}'])})"
    collector.express("make_mixup", text, Mixup=("timm.data.mixup", "Mixup"))
