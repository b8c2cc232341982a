"""The mixing of samples."""

from __future__ import annotations

from hydrant.commands.eject.cutting.collector import Collector, plain
from hydrant.commands.eject.layout import keyword, literal

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
