"""torch.distributed.checkpoint on safetensors files: the tensors of each part, in one file a rank."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from hydrant.checkpoint.manifest import seal, write_manifest, write_text
from hydrant.errors import CheckpointError, first_line, typed_line


def write(
    folder: Path,
    parts: dict[str, dict[str, Tensor]],
    texts: Mapping[str, str],
    notes: Mapping[str, Any],
    publish: Callable[[], None],
    group: dist.ProcessGroup,
) -> None:
    """Write the tensors of parts into a folder, every rank of the group its own; rank 0 the texts and the manifest too.

    When all of it is on disk, rank 0 calls `publish`. If anything is raised anywhere, all ranks raise it.
    """
    writer = _Writer(folder, texts, notes, publish)
    with _unpacked():
        dcp.save(cast("Any", parts), storage_writer=writer, process_group=group)


class _Writer(dcp.FileSystemWriter):
    """Where `dcp.save` writes to. `prepare_global_plan` and `finish` run on rank 0 alone."""

    def __init__(
        self, folder: Path, texts: Mapping[str, str], notes: Mapping[str, Any], publish: Callable[[], None]
    ) -> None:
        super().__init__(folder)
        self._folder, self._texts, self._notes, self._publish = folder, texts, notes, publish

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Name the files, once it is known which ranks write into each part."""
        shutil.rmtree(self._folder, ignore_errors=True)  # left by a kill
        self._folder.mkdir(parents=True)
        parts = [dict.fromkeys(map(_part, plan.items)) for plan in plans]
        owners = {
            part: [rank for rank, own in enumerate(parts) if part in own] for own in parts for part in own
        }
        return [
            dataclasses.replace(
                plan, storage_data={part: _file_name(part, owners[part], rank) for part in own}
            )
            for rank, (plan, own) in enumerate(zip(plans, parts, strict=True))
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results: list[WriteResult] = []
        for part, name in plan.storage_data.items():
            items = [item for item in plan.items if _part(item) == part]
            tensors = {_name(item): cast("Tensor", planner.resolve_data(item)) for item in items}
            places = {_name(item): {"saved_offsets": list(item.index.offset or ())} for item in items}
            is_whole = name == _file_name(part, [0], 0)
            _save(self._folder / name, tensors, {} if is_whole else places)
            entry = seal(self._folder / name)
            results += [WriteResult(item.index, entry["size"], (name, entry)) for item in items]
        written: Future[list[WriteResult]] = Future()
        written.set_result(results)
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        files = dict(result.storage_data for of_rank in results for result in of_rank)
        texts = {name: write_text(self._folder / name, text) for name, text in self._texts.items()}
        write_manifest(self._folder, self._notes, files | texts)
        self._publish()


def _save(file: Path, tensors: dict[str, Tensor], places: Mapping[str, Any]) -> None:
    """Write a safetensors file; `places` tell torch.distributed.checkpoint where in the tensors its shards lie."""
    # One entry or the other: safetensors writes several in any order, and equal states shall be equal files.
    entry = {"DCP_SHARDING_INFO": json.dumps(places)} if places else {"format": "pt"}
    try:
        save_file(tensors, file, entry)
    except SafetensorError as error:
        raise _system_error(error) from error
    file.chmod(file.parent.stat().st_mode & 0o666)  # it was made for its owner alone


def _system_error(error: SafetensorError) -> OSError:
    """The error of the operating system that safetensors tells of, in a type that travels between ranks."""
    found = re.search(r"os error (\d+)", str(error))
    if found is None:
        return OSError(first_line(error))
    return OSError(int(found[1]), os.strerror(int(found[1])))


def _part(item: WriteItem) -> str:
    return item.index.fqn.partition(".")[0]


def _name(item: WriteItem) -> str:
    return item.index.fqn.partition(".")[2]


def _file_name(part: str, owners: Sequence[int], rank: int) -> str:
    if len(owners) == 1:
        return f"{part}.safetensors"
    return f"{part}-{owners.index(rank) + 1:05d}-of-{len(owners):05d}.safetensors"


def files_of(folder: Path, part: str) -> list[Path]:
    """The files of a part of a checkpoint."""
    return sorted([*folder.glob(f"{part}.safetensors"), *folder.glob(f"{part}-*-of-*.safetensors")])


def shapes(files: Sequence[Path]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of the tensors that lie in safetensors files.

    Raises:
        CheckpointError: a file cannot be read.
    """
    with _readable(files):
        described: dict[str, Any] = _reader(files).read_metadata().state_dict_metadata
    return {name: (entry.size, entry.properties.dtype) for name, entry in described.items()}


def read(files: Sequence[Path], targets: dict[str, Tensor]) -> None:
    """Fill tensors, whole ones or this rank's shards, from safetensors files. No rank waits for another.

    Raises:
        CheckpointError: a file cannot be read, or a tensor is not there or has another shape.
    """
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False)
    with _readable(files), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each rank reads for itself
        dcp.load(cast("Any", targets), storage_reader=_reader(files), planner=planner, no_dist=True)


def _reader(files: Sequence[Path]) -> dcp.HuggingFaceStorageReader:
    reader = dcp.HuggingFaceStorageReader("")
    reader.fs = _Files(files)
    return reader


class _Files(FileSystem):
    """A folder that holds these files."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = [str(file) for file in files]

    def ls(self, path: Any) -> list[str]:
        del path
        return self._files


@contextmanager
def _unpacked() -> Generator[None]:
    """What was raised on a rank, instead of what torch.distributed.checkpoint packs it in."""
    try:
        yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from error


@contextmanager
def _readable(files: Sequence[Path]) -> Generator[None]:
    try:
        with _unpacked():
            yield
    except Exception as error:  # a reader raises whatever damaged bytes lead it to
        names = ", ".join(map(str, files))
        raise CheckpointError(f"{names} cannot be read ({typed_line(error)})") from error
