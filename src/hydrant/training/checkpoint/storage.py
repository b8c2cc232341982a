"""torch.distributed.checkpoint (DCP) with safetensors files: one file per part and rank."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
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

from hydrant.errors import CheckpointError, first_line, typed_line
from hydrant.files.atomic_write import remove
from hydrant.training.checkpoint.folder import seal, write_manifest, write_text


def write(
    folder: Path,
    parts: dict[str, dict[str, Tensor]],
    texts: Mapping[str, str],
    notes: Mapping[str, Any],
    publish: Callable[[], None],
    group: dist.ProcessGroup,
) -> None:
    """Write a checkpoint. Every rank writes its tensors; rank 0 also writes the texts and the manifest.

    An error on any rank is raised on all ranks.

    Args:
        folder: created, or emptied if it exists.
        parts: tensors by name, by part (`model`, `ema`, `training`).
        texts: content of text files, by file name.
        notes: further entries of the manifest.
        publish: called on rank 0 when everything is on disk.
        group: the ranks that write.
    """
    writer = _Writer(folder, texts, notes, publish)
    if dist.get_world_size(group) == 1:
        _write_alone(parts, writer)
        return
    with _unwrap_errors():
        dcp.save(cast("Any", parts), storage_writer=writer, process_group=group)


def _write_alone(parts: dict[str, dict[str, Tensor]], writer: _Writer) -> None:
    """Write what `dcp.save` writes, without its collectives, which take a third of the time of a small checkpoint.

    `dcp.save(no_dist=True)` would warn, and warnings cannot be ignored in the thread of checkpoints alone.
    """
    planner = dcp.DefaultSavePlanner()
    planner.set_up_planner(cast("Any", parts), is_coordinator=True)
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    (plan,) = writer.prepare_global_plan(plans)
    writer.finish(metadata, [writer.write_data(planner.finish_plan(plan), planner).wait()])


class _Writer(dcp.FileSystemWriter):
    """Writes a checkpoint into its folder. `dcp.save` calls `prepare_global_plan` and `finish` only on rank 0."""

    def __init__(
        self, folder: Path, texts: Mapping[str, str], notes: Mapping[str, Any], publish: Callable[[], None]
    ) -> None:
        super().__init__(folder)
        self._folder, self._texts, self._notes, self._publish = folder, texts, notes, publish

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Name the files by the number of ranks that write into each part."""
        remove(self._folder)  # left by a process that was killed
        # Not its parents: a run folder that was removed stays removed.
        self._folder.parent.mkdir(exist_ok=True)
        self._folder.mkdir()
        parts_of = [dict.fromkeys(map(_part, plan.items)) for plan in plans]  # by rank
        all_parts = {part for parts in parts_of for part in parts}
        owners = {part: [rank for rank, parts in enumerate(parts_of) if part in parts] for part in all_parts}
        return [
            replace(plan, storage_data={part: _file_name(part, owners[part], rank) for part in parts})
            for rank, (plan, parts) in enumerate(zip(plans, parts_of, strict=True))
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results: list[WriteResult] = []
        for part, name in plan.storage_data.items():
            items = [item for item in plan.items if _part(item) == part]
            tensors = {_name(item): cast("Tensor", planner.resolve_data(item)) for item in items}
            offsets = {_name(item): {"saved_offsets": list(item.index.offset or ())} for item in items}
            is_whole = name == _file_name(part, [0], 0)
            _save(self._folder / name, tensors, {} if is_whole else offsets)
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


def _save(file: Path, tensors: dict[str, Tensor], offsets: Mapping[str, Any]) -> None:
    """Write a safetensors file. `offsets` are the positions of the shards in their tensors, for DCP."""
    # Only one entry, because safetensors writes several in random order, and equal states must give equal files.
    entry = {"DCP_SHARDING_INFO": json.dumps(offsets)} if offsets else {"format": "pt"}
    try:
        save_file(tensors, file, entry)
    except SafetensorError as error:
        raise system_error(error) from error
    file.chmod(file.parent.stat().st_mode & 0o666)  # safetensors makes it readable only for its owner


def system_error(error: SafetensorError) -> OSError:
    """Return the error of the operating system in safetensors' message, as a type that can be pickled."""
    match = re.search(r"os error (\d+)", str(error))
    return OSError(int(match[1]), os.strerror(int(match[1]))) if match else OSError(first_line(error))


def _part(item: WriteItem) -> str:
    return item.index.fqn.partition(".")[0]


def _name(item: WriteItem) -> str:
    return item.index.fqn.partition(".")[2]


def _file_name(part: str, owners: Sequence[int], rank: int) -> str:
    if len(owners) == 1:
        return f"{part}.safetensors"
    return f"{part}-{owners.index(rank) + 1:05d}-of-{len(owners):05d}.safetensors"


def files_of(folder: Path, part: str) -> list[Path]:
    """Return the files of a part of a checkpoint."""
    return sorted([*folder.glob(f"{part}.safetensors"), *folder.glob(f"{part}-*-of-*.safetensors")])


def shapes(files: Sequence[Path]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape and dtype of the tensors in safetensors files, by name.

    Raises:
        CheckpointError: a file cannot be read.
    """
    with _read_errors(files):
        described: dict[str, Any] = _reader(files).read_metadata().state_dict_metadata
    return {name: (entry.size, entry.properties.dtype) for name, entry in described.items()}


def read(files: Sequence[Path], targets: dict[str, Tensor]) -> None:
    """Read safetensors files into whole tensors or into this rank's shards. No rank waits for another.

    Raises:
        CheckpointError: a file cannot be read, or a tensor is missing or has another shape.
    """
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False)
    with _read_errors(files), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # because of no_dist
        dcp.load(cast("Any", targets), storage_reader=_reader(files), planner=planner, no_dist=True)


def _reader(files: Sequence[Path]) -> dcp.HuggingFaceStorageReader:
    reader = dcp.HuggingFaceStorageReader("")
    reader.fs = _Files(files)
    return reader


class _Files(FileSystem):
    """The file system of a DCP reader that sees only these files."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = [str(file) for file in files]

    def ls(self, path: Any) -> list[str]:
        del path
        return self._files


@contextmanager
def _unwrap_errors() -> Generator[None]:
    """Raise the error of the first rank that failed, instead of DCP's CheckpointException around it."""
    try:
        yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from error


@contextmanager
def _read_errors(files: Sequence[Path]) -> Generator[None]:
    """Raise a CheckpointError that names the files, whatever a reader raises."""
    try:
        with _unwrap_errors():
            yield
    except Exception as error:  # damaged bytes can cause any error
        names = ", ".join(map(str, files))
        raise CheckpointError(f"{names} cannot be read ({typed_line(error)})") from error
