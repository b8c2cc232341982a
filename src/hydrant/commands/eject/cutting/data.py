"""The data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydrant.commands.eject.couplings import PROGRAM
from hydrant.commands.eject.cutting.collector import Collector, plain
from hydrant.commands.eject.cutting.loaded_data import DATA, cut_dataset, cut_folder, cut_memmap
from hydrant.commands.eject.own import check_source
from hydrant.commands.eject.parts import Origin
from hydrant.data.augment import AlternatingFlip, ShiftFlip
from hydrant.data.csv_layout import read_layout
from hydrant.data.docstrings import write_corpus
from hydrant.data.idx import IdxImages
from hydrant.data.in_memory import InMemorySource
from hydrant.data.token_files import vocabulary_folder
from hydrant.data.token_splits import splits_of
from hydrant.errors import ConfigError

_COMMENTS = {
    "val_ratio": "of the samples of each class",
    "split_seed": "of the division into training and validation samples",
    "mean": "of each channel",
    "std": "standard deviation of each channel",
}


def cut_own_data(collector: Collector, node: Mapping[str, Any]) -> None:
    """Add a data set of the user's: a function that returns tensors in a `Data`.

    Raises:
        ConfigError: it returns something else, or its source cannot be copied.
    """
    train = collector.plan.train
    if not isinstance(train, InMemorySource):
        returned = f"{node['_target_']} returns a {type(train).__name__}"
        raise ConfigError("data", f"{returned}; only InMemorySource can be ejected yet")
    collector.constant("MEAN", plain(train.mean), "of each channel", group=DATA)
    collector.constant("STD", plain(train.std), "standard deviation of each channel", group=DATA)
    check_source("data", node["_target_"])
    collector.make("make_data", node, DATA, "DATA")
    collector.parts.aliases["load_data"] = (f"{PROGRAM}.data_samples", "load_own")
    collector.parts.aliases["load_test"] = (f"{PROGRAM}.data_samples", "load_own_test")


def cut_data(collector: Collector) -> None:
    """Add the data set and what happens to its samples.

    Raises:
        ConfigError: a part of it cannot be ejected.
    """
    plan, config, node = collector.plan, collector.config, collector.config["data"]
    name = str(node["_target_"]).rpartition(".")[2]
    collector.constant("NUM_VAL_SAMPLES", plan.val.num_samples, "to evaluate on", group=DATA)
    collector.know(AUGMENTS=False, NORMALIZES=False, NORMALIZES_ONCE=False, READS=False, LOADS=False)
    collector.parts.aliases["samples_of"] = (f"{PROGRAM}.data", "samples_of")
    collector.know(CUTS_TEST=bool(node.get("test_ratio")), CUTS_VAL=bool(node.get("val_ratio")))
    collector.know(
        LIMITS_TRAIN=config["limit_train_samples"] is not None,
        LIMITS_VAL=config["limit_val_samples"] is not None,
    )
    keys = (
        "root", "val_ratio", "test_ratio", "split_seed", "mean", "std", "train", "val", "test",
    )  # fmt: skip
    for key in keys:
        if isinstance(node.get(key), str | bool | int | float | list):
            collector.constant(key.upper(), plain(node[key]), _COMMENTS.get(key, ""), group=DATA)
    if config["test_at_end"]:
        num_samples = plan.splits["test"].source.num_samples
        collector.constant("NUM_TEST_SAMPLES", num_samples, "to test on", group=DATA)
    collector.know(TESTS=config["test_at_end"], LIMITS_TEST=config["limit_test_samples"] is not None)
    _has_type(collector, "data_samples", "Samples")
    if isinstance(plan.train, InMemorySource):
        _cut_in_memory(collector, node, plan.train)
    if not str(node["_target_"]).startswith("hydrant."):
        cut_own_data(collector, node)
        return
    module, cut = _KINDS[name]
    cut(collector, node)
    if "load_data" not in collector.parts.expressions:
        collector.parts.aliases["load_data"] = (f"{PROGRAM}.{module}", f"load_{name}")
        collector.parts.aliases["load_test"] = (f"{PROGRAM}.{module}", f"load_{name}_test")


def _cut_in_memory(collector: Collector, node: Mapping[str, Any], train: InMemorySource) -> None:
    """Add how tensors on the device become batches."""
    if not (isinstance(train.inputs, Tensor) and isinstance(train.targets, Tensor)):
        remedy = "give one tensor of inputs and one of targets"
        raise ConfigError("data", "samples of several tensors cannot be ejected yet", remedy=remedy)
    augments, is_bytes = bool(train.augment), train.inputs.dtype == torch.uint8
    floats = train.inputs.is_floating_point()
    changes = any(train.mean) or set(train.std) != {1}
    collector.know(AUGMENTS=augments, IS_BYTES=is_bytes, NORMALIZES=augments or is_bytes)
    collector.know(NORMALIZES_ONCE=floats and changes and not augments, IS_IMAGE=train.inputs.ndim == 4)
    if not augments:
        return
    augment = train.augment
    if not isinstance(augment, ShiftFlip | AlternatingFlip):
        message = f"{node['_target_']} augments by {type(augment).__name__}, which cannot be ejected yet"
        raise ConfigError("data", message)
    name, words = type(augment).__name__, f"max_shift={augment.max_shift}, flip={augment.flip}"
    if isinstance(augment, AlternatingFlip):
        words += ", num_samples=NUM_SAMPLES"
    origin: dict[str, Origin] = {name: (type(augment).__module__, name)}
    collector.write("augment", "data", f"augment = {name}({words})\n", **origin)


def _cut_digits(collector: Collector, node: Mapping[str, Any]) -> None:
    collector.know(NORMALIZES_ONCE=False)  # `load_digits` does


def _cut_idx(collector: Collector, node: Mapping[str, Any]) -> None:
    train: Any = collector.plan.train
    collector.constant("MEAN", plain(train.mean), _COMMENTS["mean"], group=DATA)
    collector.constant("STD", plain(train.std), _COMMENTS["std"], group=DATA)
    images = IdxImages(node["variant"], Path(node["root"]))
    comment = "images and labels to train on, and those to validate on"
    collector.constant("FILES", [str(file) for file in images.files], comment, group=DATA)
    collector.constant("FIRST_LABEL", images.first_label, group=DATA)
    collector.know(IS_TURNED=images.is_turned)


def _cut_cifar(collector: Collector, node: Mapping[str, Any]) -> None:
    kind = str(node["_target_"]).rpartition(".")[2].upper()
    origin: dict[str, Origin] = {kind: ("torchvision.datasets", kind)}
    collector.load("data_images", f"load_cifar({kind})", f"load_cifar_test({kind})", **origin)


def _cut_mnist1d(collector: Collector, node: Mapping[str, Any]) -> None:
    collector.constant("NUM_SIGNALS", node["num_samples"], "of which a fifth is for tests", group=DATA)
    collector.constant("SAMPLES_SEED", node["samples_seed"], "of the signals", group=DATA)
    collector.constant("SHUFFLED", node["shuffled"], "the points of all signals, alike", group=DATA)


def _cut_tensors(collector: Collector, node: Mapping[str, Any]) -> None:
    collector.know(IS_NPZ=str(node["train"]).endswith(".npz"))
    data = "placed(read_tensors(TRAIN), read_tensors(VAL))"
    collector.load("data_samples", data, "first_of_test(read_tensors(TEST))")


def _cut_synthetic(collector: Collector, node: Mapping[str, Any]) -> None:
    collector.constant("INPUT_SHAPE", plain(node["input_shape"]), group=DATA)
    collector.constant("NUM_CLASSES", node["num_classes"], group=DATA)
    comment = "the number of the first sample to evaluate on"
    collector.constant("VAL_START", node["num_samples"], comment, group=DATA)
    _reads(collector, "data_synthetic", "make_samples", "Numbers")


def _has_type(collector: Collector, module: str, source: str) -> None:
    """Give the type of the samples that `load_data` returns."""
    for name in ("TrainingSamples", "ValidationSamples"):
        collector.parts.aliases[name] = (f"{PROGRAM}.{module}", source)


def _reads(collector: Collector, module: str, function: str, source: str) -> None:
    """Let a function make the batches from the samples, of the type `source`, and the indices of some."""
    collector.know(READS=True)
    _has_type(collector, module, source)
    collector.parts.aliases["read_batch"] = (f"{PROGRAM}.{module}", function)


def _cut_table(collector: Collector, node: Mapping[str, Any]) -> None:
    layout, _ = read_layout(node)
    if node["val_ratio"]:
        collector.constant("VAL_RATIO", node["val_ratio"], "of the lines, drawn at random", group=DATA)
    is_single = isinstance(node["target"], str)
    collector.constant("DELIMITER", node["delimiter"], group=DATA)
    collector.constant("NUMBERS", layout.numbers, "the columns of numbers", group=DATA)
    categories, comment = dict(layout.categories), "by column, in the order of the inputs"
    collector.constant("CATEGORIES", categories, comment, group=DATA)
    collector.constant("TARGET", layout.targets[0], "the column to predict", group=DATA)
    collector.constant("TARGETS", layout.targets, "the columns to predict", group=DATA)
    collector.constant("CLASSES", layout.classes, group=DATA)
    collector.constant(
        "MISSING", tuple(sorted(layout.spelling.missing_words)), "such cells have no value", group=DATA
    )
    comment = "subtract the mean, and divide by the standard deviation"
    collector.constant("STANDARDIZE", node["standardize"], comment, group=DATA)
    collector.constant("STANDARDIZE_TARGETS", node["standardize_targets"], group=DATA)
    collector.know(
        FILLS=node["missing"] == "mean",
        HAS_NUMBERS=bool(layout.numbers),
        HAS_CATEGORIES=bool(layout.categories),
        HAS_CLASSES=layout.classes is not None,
        HAS_NUMERIC_CLASSES=layout.targets[0] not in layout.texts,
        HAS_VAL_FILE=node["val"] is not None,
        HAS_TEST_FILE=node["test"] is not None,
        CUTS_VAL=node["val"] is None and bool(node["val_ratio"]),
        CUTS_TEST=node["test"] is None and bool(node["test_ratio"]),
        IS_SINGLE=is_single,
    )


def _cut_tokens(collector: Collector, node: Mapping[str, Any]) -> None:
    plan = collector.plan
    collector.constant("ROOT", str(vocabulary_folder(node["root"], splits_of(node))), group=DATA)
    sources: dict[str, Any] = {"train": plan.train, "val": plan.val}
    if collector.config["test_at_end"]:
        sources["test"] = plan.splits["test"].source
    for name, source in sources.items():
        write_corpus(source.shards.files)
        files = [(str(f.path), f.dtype.str, f.offset, f.num_tokens) for f in source.shards.files]
        comment = "path, type, bytes before the tokens, number of tokens" if name == "train" else ""
        collector.constant(f"{name.upper()}_FILES", plain(files), comment, group=DATA)
    collector.constant("SEQUENCE_LENGTH", node["sequence_length"], "tokens", group=DATA)
    collector.constant("SEPARATOR", node["separator"], "the token between documents", group=DATA)
    collector.know(
        IS_IN_ORDER=node["sampling"] == "contiguous",
        SEPARATES=node["sampling"] == "documents",
        SEPARATOR_IS_LAST=node["separator_position"] != "start",
    )
    collector.parts.aliases["samples_of"] = (f"{PROGRAM}.data_tokens", "samples_of")
    _reads(collector, "data_tokens", "read_sequences", "Tokens")
    collector.load("data_tokens", "(Tokens(TRAIN_FILES), Tokens(VAL_FILES))", "Tokens(TEST_FILES)")


_KINDS: Mapping[str, tuple[str, Callable[[Collector, Mapping[str, Any]], None]]] = {
    "digits": ("data_images", _cut_digits),
    "mnist": ("data_images", _cut_idx),
    "mnist1d": ("data_images", _cut_mnist1d),
    "cifar10": ("data_images", _cut_cifar),
    "cifar100": ("data_images", _cut_cifar),
    "tensors": ("data_samples", _cut_tensors),
    "csv": ("data_table", _cut_table),
    "synthetic": ("data_synthetic", _cut_synthetic),
    "tokens": ("data_tokens", _cut_tokens),
    "dataset": ("data_loading", cut_dataset),
    "memmap": ("data_loading", cut_memmap),
    "image_folder": ("data_loading", cut_folder),
}
"""By the data set: the module of the program that loads it, and what adds its settings."""
