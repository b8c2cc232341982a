"""The id of a run at a tracker, kept in the run folder."""

from pathlib import Path

from hydrant.errors import log
from hydrant.files.atomic_write import replace_file
from hydrant.files.read_file import read_bytes
from hydrant.terminal.console import relative


def read_id(folder: Path, file: Path) -> bytes | None:
    """Return the id that a run folder holds; None if there is none, or if the folder is a copy of another run's.

    The run of a copy is another run: under the same id, both would write into one run of the tracker. A folder that
    was moved keeps its id.

    Args:
        folder: the run folder.
        file: of the id, relative to the folder.
    """
    saved = read_bytes(folder / file)
    written_in = Path((read_bytes(_place(folder / file)) or b"").decode(errors="replace").strip("\0"))
    if saved is None or written_in == Path() or written_in == folder.resolve():
        return saved
    original = written_in / file
    if not original.is_file() or original.samefile(folder / file) or read_bytes(original) != saved:
        return saved
    message = "%s is a copy of %s: it is another run of the tracker from now on"
    log.warning(message, relative(folder), relative(written_in))
    return None


def keep_id(folder: Path, file: Path, run_id: str) -> None:
    """Write the id of a run, and in which folder it is."""
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    replace_file(folder / file, run_id)
    replace_file(_place(folder / file), str(folder.resolve()))


def _place(file: Path) -> Path:
    return file.with_name(f"{file.name}-folder")
