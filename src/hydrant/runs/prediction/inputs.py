"""What to predict: a split of the run's data, files, folders of them, tensors, or a table."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hydrant.batch import Batch, Tensors, tensors_of
from hydrant.config.flat import flatten
from hydrant.data import InMemorySource, LoaderSource, Reader, Source
from hydrant.data.base import rounded
from hydrant.data.dataset import TENSOR_FILES, read_inputs
from hydrant.data.in_memory import tensor_reader
from hydrant.errors import ConfigError
from hydrant.files.user_files import visible_files
from hydrant.terminal.console import notice
from hydrant.training.trainer import Plan

KEY = "inputs"
"""Names the inputs in error messages."""


@dataclass(frozen=True)
class Inputs:
    """Samples to predict.

    Args:
        source: the samples.
        title: what they are, for people.
        file_of: returns the file of a sample; None: samples are named by their number.
        has_targets: whether the targets of the source are known ones.
        files: the files that were given.
    """

    source: Source
    title: str
    file_of: Callable[[int], str] | None = None
    has_targets: bool = False
    files: Sequence[Path] = ()

    @property
    def column(self) -> str:
        """The name of the column that names the samples."""
        return "index" if self.file_of is None else "file"

    def name_of(self, number: int) -> str | int:
        """Return the name of a sample: its file, or its number."""
        return number if self.file_of is None else self.file_of(number)


def find_inputs(plan: Plan, words: Sequence[str]) -> Inputs:
    """Return the samples that the words name: one split or tensor file, or files and folders.

    Raises:
        ConfigError: there is no such split or file, or the data of the run cannot read it.
        DataError: a file is damaged.
    """
    if len(words) == 1 and words[0] in plan.splits:
        if Path(words[0]).exists():
            notice(f"{words[0]} is the split of the data; write ./{words[0]} for the path of this name")
        source = plan.splits[words[0]].source
        file_of = source.name_of if isinstance(source, LoaderSource) and source.names_are_files else None
        return Inputs(source, f"the split {words[0]}", file_of, has_targets=True)
    for word in words:
        if not Path(word).exists():
            splits = ", ".join(plan.splits)
            raise ConfigError(KEY, f"there is no file or folder {word}, nor such a split; splits: {splits}")
    if len(words) == 1 and Path(words[0]).suffix.lower() in TENSOR_FILES and _reader(plan).tensors:
        path = Path(words[0])
        tensors = of_tensors(plan, read_inputs(path, KEY), str(path))
        return dataclasses.replace(tensors, files=(path,))
    return _of_files(_reader(plan), words, plan)


def check_not_read(out: Path, inputs: Inputs, plan: Plan) -> None:
    """Check that no samples are read from the file `out`, which predictions will replace.

    Raises:
        ConfigError: it is one of the given files, or of those that the settings of the data name.
    """
    named = [value for value in flatten(plan.config["data"]).values() if isinstance(value, str)]
    files = [path for path in (*inputs.files, *map(Path, named)) if path.is_file()]
    if out.exists() and any(out.samefile(path) for path in files):
        message = f"{out} holds samples, which the predictions would replace"
        raise ConfigError("--out", message, remedy="give another file")


def of_tensors(plan: Plan, inputs: Tensors, title: str = "the given inputs") -> Inputs:
    """Return inputs in memory as samples.

    Raises:
        ConfigError: the data of the run take none, or the shape differs from that of the run's samples.
    """
    reader = _reader(plan)
    if reader.tensors is None:
        raise ConfigError(KEY, "this run cannot read tensors", remedy=_offers(plan))
    inputs, shape = rounded(inputs, plan.spec.doubles), plan.data.input_shape
    tensors = list(tensors_of(inputs))
    if len(tensors) == 1 and shape is not None and tuple(tensors[0].shape[1:]) != shape:
        message = f"{title} has the shape {list(tensors[0].shape)}"
        raise ConfigError(KEY, f"{message}, but the run needs (N, {', '.join(map(str, shape))})")
    source = reader.tensors(inputs)
    if not tensors or not Batch(inputs, ()).num_samples:
        raise ConfigError(KEY, f"{title} has no samples")
    kinds, needed = (_kinds(plan, part) for part in (source, plan.train))
    if kinds != needed:
        message = f"{title} has numbers of the type {kinds}, but the run needs {needed}"
        raise ConfigError(KEY, message, remedy="convert them")
    return Inputs(source, title)


def _kinds(plan: Plan, source: Source) -> str:
    """Return the kinds of numbers in the first sample of a source, for messages."""
    batch = next(iter(source.subset(range(1)).batches(plan.spec, 1)))
    kinds = {torch.float16: "float", torch.bfloat16: "float", torch.float32: "float", torch.float64: "float",
             torch.int8: "int", torch.int16: "int", torch.int32: "int", torch.int64: "int"}  # fmt: skip
    return ", ".join(
        kinds.get(t.dtype, str(t.dtype).removeprefix("torch.")) for t in tensors_of(batch.inputs)
    )


def _of_files(reader: Reader, words: Sequence[str], plan: Plan) -> Inputs:
    if reader.files is None:
        raise ConfigError(KEY, f"this run cannot read {words[0]}", remedy=_offers(plan))
    files = [file for word in words for file in _files_of(Path(word), reader, plan)]
    title = str(files[0]) if len(files) == 1 else f"{len(files):,} files"
    source = reader.files(files)
    if not reader.is_sample_per_file:
        return Inputs(source, title, files=files)
    if source.num_samples != len(files):
        message = f"gives {source.num_samples} samples for {len(files)} files; one for each is needed"
        raise ConfigError("data", message)
    return Inputs(source, title, lambda number: str(files[number]), files=files)


def _files_of(path: Path, reader: Reader, plan: Plan) -> list[Path]:
    """Return a file, or the files in a folder and in folders within it that a reader can read, sorted."""
    suffixes = reader.suffixes
    if path.is_dir():
        paths = visible_files(path, lambda name: not suffixes or Path(name).suffix.lower() in suffixes)
        files = sorted(map(Path, paths))
        if not files:
            message = f"the folder {path} holds no file that this run reads"
            raise ConfigError(KEY, message, remedy=_offers(plan))
        return files
    if suffixes and path.suffix.lower() not in suffixes:
        raise ConfigError(KEY, f"this run cannot read {path}", remedy=_offers(plan))
    return [path]


def _reader(plan: Plan) -> Reader:
    """Return the reader of the data. Without one, data in memory read tensors, normalized like their samples."""
    if plan.data.reader is None and isinstance(plan.val, InMemorySource):
        return tensor_reader(plan.val.mean, plan.val.std)
    return plan.data.reader or Reader()


def _offers(plan: Plan) -> str:
    """Return what the data of a run can read, for messages."""
    reader, splits = _reader(plan), f"its splits ({', '.join(plan.splits)})"
    offers = [f"tensors ({', '.join(TENSOR_FILES)})"] if reader.tensors else []
    if reader.files is not None:
        kinds = f"files ({', '.join(reader.suffixes)})" if reader.suffixes else "files"
        offers.append(f"{kinds} and folders of them" if reader.is_sample_per_file else f"one of {kinds}")
    remedy = "" if plan.data.reader else "; the argument reader of hydrant.data.Data gives it more"
    return f"it reads {', '.join([*offers, splits])}{remedy}"
