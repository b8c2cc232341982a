"""Data that worker processes read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from hydrant.batch import tensors_of
from hydrant.commands.eject.couplings import PROGRAM
from hydrant.commands.eject.cutting.collector import Collector, literal_call, plain
from hydrant.commands.eject.own import check_source
from hydrant.commands.eject.parts import Origin
from hydrant.data.loader import LoaderSource
from hydrant.errors import ConfigError

DATA = "The data."


def _loads(collector: Collector, node: Mapping[str, Any], *, augments: bool) -> None:
    """Let worker processes read the samples."""
    source = collector.plan.train
    assert isinstance(source, LoaderSource)
    inputs, _ = source.samples[0]
    collector.know(COLLATES=False, SEEDS_VAL=False)
    collector.know(LOADS=True, AUGMENTS=augments, IS_BYTES=False, HAS_DICTS=isinstance(inputs, Mapping))
    collector.constant("NUM_WORKERS", node["num_workers"], "processes that read samples", group=DATA)
    aliases = collector.parts.aliases
    module = f"{PROGRAM}.data_loading"
    aliases["to_device"] = module, "to_device"
    aliases["TrainingSamples"] = module, "TrainingBatches"
    aliases["ValidationSamples"] = module, "Loader"


def cut_memmap(collector: Collector, node: Mapping[str, Any]) -> None:
    """Add arrays in files.

    Raises:
        ConfigError: there are no targets.
    """
    if not Path(node["train"], "targets.npy").is_file():
        raise ConfigError("data.train", "samples without targets.npy cannot be ejected yet")
    _loads(collector, node, augments=False)
    collector.load("data_loading", "loaders(Arrays(TRAIN), Arrays(VAL))", "test_loader(Arrays(TEST))")


def _check_hidden(split: str) -> None:
    """Refuse hidden class folders and hidden images: torchvision reads them, a run does not."""
    from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes, make_dataset

    classes, indices = find_classes(split)
    images = make_dataset(split, indices, IMG_EXTENSIONS, allow_empty=True)
    paths = [*(f"{split}/{name}" for name in classes), *(path for path, _ in images)]
    hidden = next((path for path in paths if "/." in path.removeprefix(split)), None)
    if hidden is not None:
        message = f"{hidden} is hidden, which a run leaves out, but the file does not"
        raise ConfigError("data.root", message, remedy="remove it")


def cut_folder(collector: Collector, node: Mapping[str, Any]) -> None:
    """Add folders of images.

    Raises:
        ConfigError: the config erases parts of images, or a folder holds hidden images, which the file would read.
    """
    for key in ("train_dir", "val_dir", "test_dir"):
        if node[key]:
            _check_hidden(str(Path(node["root"], node[key])))
    _loads(collector, node, augments=True)
    augment = {key: plain(value) for key, value in node["augment"].items() if key[0] != "_"}
    erases = augment["re_prob"] > 0
    if not erases:
        del augment["re_prob"], augment["re_mode"]
    usual = {"auto_augment": None, "color_jitter": None}
    augment = {key: value for key, value in augment.items() if key not in usual or value is not None}
    if node["augment"]["color_jitter"] is None:
        augment["color_jitter"] = None  # timm's default is not off
    images = {key: plain(node[key]) for key in ("interpolation", "mean", "std")}
    images = {"input_size": plain(node["input_shape"]), **images}
    if erases:  # which needs normalized floats
        message = f"erasing ({augment['re_prob']}) cannot be ejected yet"
        raise ConfigError("data.augment.re_prob", message, remedy="give 0")
    collector.know(IS_BYTES=True)
    collector.constant("IMAGES", images, "of timm's create_transform", group=DATA)
    collector.constant("AUGMENTATION", {**augment, "normalize": False}, "of training images", group=DATA)
    comment = "the input is this part of the resized shorter edge in evaluations"
    collector.constant("CROP_PCT", node["crop_pct"], comment, group=DATA)
    for key in ("train_dir", "val_dir", "test_dir"):
        collector.constant(key.upper(), node[key], "folders of ROOT" if key[0] == "t" else "", group=DATA)


def cut_dataset(collector: Collector, node: Mapping[str, Any]) -> None:
    """Add data sets of the user's.

    Raises:
        ConfigError: their items are no pairs, or their source cannot be copied.
    """
    for key in ("target", "collate"):
        if node[key] is not None:
            message, remedy = f"{node[key]!r} cannot be ejected yet", "let items be pairs of tensors"
            raise ConfigError(f"data.{key}", message, remedy=remedy)
    _loads(collector, node, augments=True)
    source: Any = collector.plan.train
    batch = default_collate([source.samples[0]])
    doubles = any(tensor.dtype == torch.float64 for tensor in tensors_of(tuple(batch)))
    collector.know(COLLATES=doubles, SEEDS_VAL=True)
    made, imports = list[str](), dict[str, Origin]()
    for split in ("train", "val", *(("test",) if collector.config["test_at_end"] else ())):
        part = node[split]
        check_source(f"data.{split}", part["_target_"])
        call, origin = literal_call(part)
        made.append(call)
        imports |= origin
    collector.load("data_loading", f"loaders({', '.join(made[:2])})", f"test_loader({made[-1]})", **imports)
