"""The content of a checkpoint, as it is saved and read back: tensors by path and the rest as JSON, no pickle.

torch.distributed.checkpoint (DCP) plans the safetensors files: one per part and rank.
"""

import json
import os
import re
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

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
from hydrant.files.on_disk import check_regular, remove
from hydrant.optimizers.kernels import is_sharded, local_tensors
from hydrant.records import check_type
from hydrant.training.checkpoint.folder import MANIFEST, TRAINING, Manifest, read_manifest, seal, write_text


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


def _write_alone(parts: dict[str, dict[str, Tensor]], writer: "_Writer") -> None:
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
        manifest = {**self._notes, "files": files | texts}
        write_text(self._folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
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


def split(state: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """Return the state in JSON's types, and add its tensors to `tensors` by their path.

    >>> split({"betas": (0.9, 0.99), "state": {0: None}}, {})
    {'betas': {'$tuple': [0.9, 0.99]}, 'state': {'$items': [[0, None]]}}

    Raises:
        CheckpointError: a value is neither a plain type, a dtype nor a tensor.
    """
    inner = f"{path}." if path else ""
    match state:
        case Tensor(is_sparse=True):  # a checkpoint has dense ones alone
            parts = [state._indices(), state._values(), [*state.shape], state.is_coalesced()]
            return {"$sparse": split(parts, tensors, path)}
        case Tensor():
            key = path if path not in tensors else f"{path}#{len(tensors)}"
            tensors[key] = state
            return {"$tensor": key}
        case None | bool() | int() | float() | str():
            return state
        case torch.dtype():  # param groups of some optimizers hold the dtype of their state
            return {"$dtype": str(state).removeprefix("torch.")}
        case list():
            return [split(item, tensors, f"{inner}{n}") for n, item in enumerate(state)]
        case tuple():
            return {"$tuple": [split(item, tensors, f"{inner}{n}") for n, item in enumerate(state)]}
        case Mapping():
            items = {key: split(item, tensors, f"{inner}{key}") for key, item in state.items()}
            if all(isinstance(key, str) and not key.startswith("$") for key in items):
                return items
            return {"$items": [[split(key, tensors, inner), item] for key, item in items.items()]}
        case _:
            raise CheckpointError(f"{path} cannot be saved: {type(state).__name__} is not a plain type")


def join(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the state that `split` took apart.

    >>> join({'betas': {'$tuple': [0.9, 0.99]}, 'state': {'$items': [[0, None]]}}, {})
    {'betas': (0.9, 0.99), 'state': {0: None}}
    """
    match plain:
        case {"$tensor": key}:
            return tensors[key]
        case {"$sparse": [indices, values, size, is_coalesced]}:
            parts = join(indices, tensors), join(values, tensors), size
            return torch.sparse_coo_tensor(*parts, check_invariants=True, is_coalesced=is_coalesced)
        case {"$dtype": name}:
            return torch.empty(0, dtype=getattr(torch, name)).dtype  # refuses what is no dtype
        case {"$tuple": items}:
            return tuple(join(item, tensors) for item in items)
        case {"$items": items}:
            return {join(key, tensors): join(item, tensors) for key, item in items}
        case dict():
            return {key: join(item, tensors) for key, item in plain.items()}
        case list():
            return [join(item, tensors) for item in plain]
        case _:
            return plain


def tensors_in(plain: Any) -> Iterator[str]:
    """Yield the paths of the tensors in a state that `split` returned."""
    match plain:
        case {"$tensor": str(key)}:
            yield key
        case dict():
            for item in plain.values():
                yield from tensors_in(item)
        case list():
            for item in plain:
                yield from tensors_in(item)
        case _:
            return


_Key = tuple[str, str]  # the part and the name of a tensor
Owner = Callable[[str], Tensor | None]
"""Returns the parameter that the tensor with this path in the training state belongs to, or None."""

_STRIDES = "strides"  # a key of training.json
_ALIGNMENT = 64  # bytes
_BLOCK_BYTES = 2**28
"""The largest block of host memory that is allocated at once. A power of two, because torch pins only such sizes."""


@dataclass(frozen=True)
class Checkpoint:
    """Weights by name, and the nested training state of plain types and tensors."""

    model: Mapping[str, Any]
    training: Mapping[str, Any]
    ema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    owner: Owner = lambda name: None


@dataclass(frozen=True)
class Snapshot:
    """A copy of a checkpoint's content on the host, which further training does not change."""

    parts: dict[str, dict[str, Tensor]]
    texts: dict[str, str]  # the other files, by name

    @classmethod
    def of(cls, content: Checkpoint, *, is_rank_zero: bool, reuse: Self | None = None) -> Self:
        """Copy this rank's part of the content: its shards, and on rank 0 also the tensors that every rank holds.

        The memory of `reuse`, an earlier snapshot, is overwritten where it fits, because allocating memory takes
        several times as long as copying.
        """
        training: dict[str, Tensor] = {}
        plain = {**split(content.training, training), _STRIDES: _other_strides(training, content.owner)}
        named = {"model": content.model, "ema": content.ema, "training": training}
        values = {(part, name): value for part in named for name, value in named[part].items()}
        tensors = {key: v.detach() for key, v in values.items() if is_rank_zero or is_sharded(v)}
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in named}
        for (part, name), copy in _copy_to_host(tensors, reuse.parts if reuse else {}).items():
            parts[part][name] = copy
        return cls(parts, {TRAINING: json.dumps(plain) + "\n"})


def _copy_to_host(
    tensors: Mapping[_Key, Tensor], reuse: Mapping[str, Mapping[str, Tensor]]
) -> dict[_Key, Tensor]:
    """Return copies, in tensors of `reuse` where shape and dtype fit. Do not wait for copies from CUDA."""
    old = {(part, name): target for part, targets in reuse.items() for name, target in targets.items()}
    fitting = {
        key: old[key]
        for key, tensor in tensors.items()
        if key in old and (old[key].shape, old[key].dtype) == (tensor.shape, tensor.dtype)
    }
    copies = {**fitting, **_allocate({key: tensor for key, tensor in tensors.items() if key not in fitting})}
    ordered = {key: copies[key] for key in tensors}
    for target, tensor in zip(local_tensors(ordered.values()), local_tensors(tensors.values()), strict=True):
        target.copy_(tensor, non_blocking=True)
    return ordered


def _allocate(tensors: Mapping[_Key, Tensor]) -> dict[_Key, Tensor]:
    """Return host tensors like these, in a few large blocks.

    Memory for copies from CUDA is pinned, and pinning it tensor by tensor would stop training for a second or more.
    """
    locals_ = dict(zip(tensors, local_tensors(tensors.values()), strict=True))
    is_pinned = any(tensor.is_cuda for tensor in locals_.values())
    sizes = {key: -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for key, tensor in locals_.items()}
    remaining, free, allocated = sum(sizes.values()), torch.empty(0, dtype=torch.uint8), dict[_Key, Tensor]()
    for key, tensor in locals_.items():
        if sizes[key] > len(free):
            size = max(sizes[key], min(remaining, _BLOCK_BYTES))
            free = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)
        local, whole = free[: tensor.nbytes].view(tensor.dtype).view(tensor.shape), tensors[key]
        # Unlike `from_local`, this leaves the shard on the host although the mesh is on CUDA.
        spec: Any = whole._spec if is_sharded(whole) else None  # pyrefly: ignore[protected-access]  # it has no public name
        allocated[key] = local if spec is None else cast("Any", type(whole))(local, spec, requires_grad=False)
        free, remaining = free[sizes[key] :], remaining - sizes[key]
    return allocated


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint on disk. Its manifest and the plain part of its training state are read once."""

    path: Path

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest.

        Raises:
            CheckpointError: it is missing or damaged.
        """
        return read_manifest(self.path)

    def plain_state(self, key: str, kind: Any = Any) -> Any:
        """Return what was saved as `training[key]`, with placeholders for its tensors. It must not be changed.

        Args:
            key: names a part of the state.
            kind: its type, as `records.check_type` takes it.

        Raises:
            CheckpointError: it cannot be read, or is of another type.
        """
        try:
            return check_type(self._content[key], kind)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CheckpointError(f"{self.path / TRAINING} holds no {key} ({typed_line(error)})") from error

    def read_state(self, key: str, owner: Owner = lambda name: None) -> Any:
        """Return what was saved as `training[key]`, on the host.

        If `owner` returns a parameter of the same shape for the path of a tensor, the tensor is read onto that
        parameter's device, and sharded and laid out like it. A tensor that had another layout gets that again.

        Raises:
            CheckpointError: it cannot be read.
        """
        plain, strides = self.plain_state(key), self.plain_state(_STRIDES)
        files = files_of(self.path, "training")
        saved = shapes(files)
        targets: dict[str, Tensor] = {}
        try:
            for name in tensors_in(plain):
                target = _empty(*saved[name], owner(name))
                if name in strides:
                    target = torch.empty_strided(
                        target.shape, strides[name], dtype=target.dtype, device=target.device
                    )
                targets[name] = target
            read(files, targets)
            return join(plain, targets)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError, RuntimeError) as error:
            raise CheckpointError(f"{self.path / TRAINING} cannot be read ({typed_line(error)})") from error

    @cached_property
    def _content(self) -> Any:
        file = self.path / TRAINING
        try:
            check_regular(file)
            return json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{file} cannot be read ({typed_line(error)})") from error


def weight_parts(path: Path) -> list[str]:
    """Return the weights that a checkpoint holds: `model`, and `ema` if weights are averaged."""
    return [part for part in ("model", "ema") if files_of(path, part)]


def _other_strides(tensors: Mapping[str, Tensor], owner: Owner) -> dict[str, list[int]]:
    """Return, by name, the strides of tensors for which `_empty` alone would choose others.

    A matrix product rounds differently if a factor has other strides. So an optimizer whose eigenvectors are
    column-major, as those of torch.linalg, would not continue exactly without them.
    """
    strides = dict[str, list[int]]()
    for name, tensor in tensors.items():
        parameter = owner(name)
        if tensor.ndim < 2 or is_sharded(tensor) or (parameter is not None and is_sharded(parameter)):
            continue
        usual = _empty(tensor.shape, tensor.dtype, parameter, device="meta").stride()
        if tensor.stride() != usual and _are_dense(tensor.shape, tensor.stride()):
            strides[name] = list(tensor.stride())
    return strides


def _are_dense(size: torch.Size, strides: Sequence[int]) -> bool:
    """Return whether these strides let a tensor of this size fill its memory, without gaps or shared elements."""
    num_elements = 1
    for stride, length in sorted(zip(strides, size, strict=True)):
        if length > 1 and stride != num_elements:
            return False
        num_elements *= length
    return True


def _empty(
    size: torch.Size, dtype: torch.dtype, owner: Tensor | None, *, device: str | None = None
) -> Tensor:
    if owner is not None and owner.shape == size:
        return torch.empty_like(owner, dtype=dtype, device=device, requires_grad=False)
    return torch.empty(size, dtype=dtype, device=device)
