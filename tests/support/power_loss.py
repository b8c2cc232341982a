"""A model of a disk that loses its power: what may be left of a folder, from the recorded operations of a process.

As in ALICE and CrashMonkey (Pillai et al., OSDI 2014; Mohan et al., OSDI 2018). `fsync` of a file makes its content
durable, `fsync` of a folder its entries. What came after may be lost or kept, for every file and folder separately.
The entries of a folder change in order; a rename is one change.
"""

import contextlib
import os
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from file_events import observe_writes

Content: TypeAlias = bytes | dict[str, "int | str"]
"""Of a file its bytes; of a folder the inodes of its entries by name, with the target in place of a link's inode."""

Tree: TypeAlias = dict[str, bytes | str | None]
"""Files, links and folders by path: the bytes of a file, the target of a link, None for a folder."""

POLICIES = ("nothing", "names", "zeros", "half", "data", "mixed 1", "mixed 2", "everything")
"""What survives of that which was not flushed.

    names       the entries of folders, not the bytes of files
    zeros       so, and files have their full length, filled with zeros
    half        so, and files have half of their new bytes
    data        the bytes of files, not the entries of folders
    mixed       of each file and folder any version, of files a part of it; in "mixed 2" zeros follow
    everything  as after a kill
"""


@dataclass(frozen=True)
class Operation:
    """A file or folder has a new content, or its content was flushed to disk."""

    inode: int
    content: Content | None = None  # None: flushed
    event: str = ""


@dataclass
class History:
    """The contents of a file or folder since it was last flushed."""

    versions: list[Content] = field(default_factory=list[Content])

    def survivor(self, policy: str, chance: random.Random) -> Content:
        first, last = self.versions[0], self.versions[-1]
        if policy.startswith("mixed"):
            last = chance.choice(self.versions)
        if isinstance(first, dict) or isinstance(last, dict):
            return first if policy in ("nothing", "data") else last
        if not last.startswith(first):  # it was written anew
            return first if policy in ("nothing", "names") else last
        kept = {
            "nothing": 0,
            "names": 0,
            "zeros": 0,
            "half": (len(last) - len(first)) // 2,
            "mixed 1": chance.randrange(len(last) + 1),
            "mixed 2": chance.randrange(len(last) + 1),
        }.get(policy, len(last))
        has_length = policy == "zeros" or (policy == "mixed 2" and last is not first)
        return last[: len(first) + kept].ljust(len(last) if has_length else 0, b"\0")


class Recorder:
    """Records what this process does under a folder, which exists."""

    def __init__(self, root: Path) -> None:
        self._root, self._lock = root.resolve(), threading.Lock()
        self._known = dict[int, Content]()
        self._held = dict[int, int]()  # descriptors: an inode in use is not used again for another file
        self.operations = list[Operation]()
        self._note(self._root, {}, "begin")
        observe_writes(root, self._observe)

    def finish(self) -> list[Operation]:
        self._observe("end", self._root)
        return self.operations

    def _observe(self, event: str, path: Path) -> None:
        with self._lock:
            done = False
            while not done:
                with contextlib.suppress(FileNotFoundError):  # another thread removes or renames a file
                    self._scan(self._root, f"before {event} {path.relative_to(self._root)}")
                    done = True
            if event == "os.fsync":
                self.operations.append(Operation(path.stat().st_ino, None, f"{event} {path.name}"))

    def _scan(self, folder: Path, event: str) -> int:
        """Record what has changed in a folder since the last call; return its inode."""
        entries = dict[str, int | str]()
        with os.scandir(folder) as found:
            for entry in sorted(found, key=lambda entry: entry.name):
                if entry.is_symlink():
                    entries[entry.name] = str(Path(entry.path).readlink())
                elif entry.is_dir():
                    entries[entry.name] = self._scan(Path(entry.path), event)
                else:
                    entries[entry.name] = self._note(Path(entry.path), Path(entry.path).read_bytes(), event)
        return self._note(folder, entries, event)

    def _note(self, path: Path, content: Content, event: str) -> int:
        inode = path.stat().st_ino
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)
            self._known[inode] = type(content)()
            self.operations.append(Operation(inode, type(content)(), event))
        if self._known[inode] != content:
            self._known[inode] = content
            self.operations.append(Operation(inode, content, event))
        return inode


class Disk:
    """The state of a disk while recorded operations are applied."""

    def __init__(self, operations: list[Operation]) -> None:
        self.root = operations[0].inode
        self._files = dict[int, History]()

    def apply(self, operation: Operation) -> None:
        history = self._files.setdefault(operation.inode, History())
        if operation.content is None:
            del history.versions[:-1]
        else:
            history.versions.append(operation.content)

    def after_power_loss(self, policy: str) -> Tree:
        """Return what is left."""
        chance, left = random.Random(policy), dict[str, bytes | str | None]()

        def visit(inode: int, path: str) -> None:
            content = self._files[inode].survivor(policy, chance)
            if isinstance(content, bytes):
                left[path] = content
                return
            left[path] = None
            for name, entry in content.items():
                if isinstance(entry, str):
                    left[f"{path}/{name}"] = entry
                else:
                    visit(entry, f"{path}/{name}")

        visit(self.root, ".")
        return left


def write_tree(tree: Tree, folder: Path) -> None:
    """Write what `after_power_loss` returned."""
    for name, content in tree.items():
        path = folder / name
        if content is None:
            path.mkdir(exist_ok=True)
        elif isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)
