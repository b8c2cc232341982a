"""What receives the metrics of a run: the protocol of trackers, what they receive, several as one.

Also the id of a run at a tracker, and calls of a slow service. Trackers of services are extensions.
"""

import contextlib
import threading
from collections import ChainMap
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydrant.errors import ConfigError, HydrantError, log, typed_line
from hydrant.files.on_disk import replace_file
from hydrant.terminal.console import relative


@dataclass(frozen=True)
class RunIdentity:
    """The data about a run that a tracker may show, in plain types."""

    folder: Path
    name: str
    group: str
    job_type: str
    tags: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)  # choices, then flat keys: "optimizer.lr": 0.001
    notes: str = ""
    best: tuple[str, str] | None = None  # the metric of the best checkpoint, and max or min
    # Reads the rows that a resumed run continues.
    history: Callable[[], Sequence[Mapping[str, float]]] = tuple


@dataclass(frozen=True)
class Histogram:
    """The distribution of a tensor's finite values: counts in bins of equal width from `low` to `high`."""

    low: float
    high: float
    counts: Sequence[int]
    total: float  # sum of the values
    squares: float  # sum of their squares

    @property
    def edges(self) -> list[float]:
        """The edges of the bins, one more than there are bins.

        >>> Histogram(0.0, 1.0, (3, 1), 1.2, 0.9).edges
        [0.0, 0.5, 1.0]
        """
        width = (self.high - self.low) / len(self.counts)
        return [self.low + n * width for n in range(len(self.counts))] + [self.high]


class Tracker:
    """Receives the metrics, pictures and files of a run; here, nothing is done with them.

    A tracker that raises gets nothing more, with one warning; the run goes on. A `ConfigError` of its constructor
    refuses the run before it starts.

    Built as `tracker(identity, num_updates)`; `num_updates` is 0, or the update at which the run resumes.

    Attributes:
        recorded_as: the key of what it describes in summary.json.
    """

    recorded_as = "tracker"

    @classmethod
    def warmed_up(cls, settings: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        """Return a block that prepares the run and then builds the tracker: what takes long may start in a thread.

        Args:
            settings: the tracker's config.
        """
        del settings
        return contextlib.nullcontext()

    def log(self, row: Mapping[str, float]) -> None:
        """Log a row: `num_updates`, `epoch`, `time` (unix seconds) and metrics, as Python floats, finite or not."""

    def image(self, key: str, path: Path) -> None:
        """Log a picture that lies in the run folder."""

    def text(self, key: str, text: str) -> None: ...

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table of plain values; each row has a value for each column."""

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
        """Log histograms of weights and gradients by name."""

    def file(self, path: Path) -> None:
        """Keep another file of the run folder with the run."""

    def checkpoint(self, path: Path) -> None:
        """Handle a complete new checkpoint in the run folder's `checkpoints/`."""

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None:
        """End the run with the process's exit status. `summary` is summary.json, or {} if the run could not start."""

    def describe(self) -> Mapping[str, Any]:
        """Return what summary.json records about this tracker; {} for nothing."""
        return {}

    def recorded(self) -> Mapping[str, Any]:
        """Return that by its key of summary.json."""
        return {self.recorded_as: description} if (description := self.describe()) else {}


class NullTracker(Tracker):
    """Logs nothing: the run folder alone holds the metrics."""

    def __init__(self, identity: RunIdentity, num_updates: int) -> None:
        del identity, num_updates


def read_id(folder: Path, file: Path) -> bytes | None:
    """Return the id that a run folder holds; None if there is none, or if the folder is a copy of another run's.

    The run of a copy is another run: under the same id, both would write into one run of the tracker. A folder that
    was moved keeps its id.

    Args:
        folder: the run folder.
        file: of the id, relative to the folder.
    """
    from hydrant.files.read_file import read_bytes  # with YAML, which the loop does not need

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


class NoAnswerError(Exception):
    """A call did not return within its time limit."""


def call_with_timeout(function: Callable[[], object], timeout: float) -> Exception | None:
    """Call `function` and wait at most `timeout` seconds.

    The call runs in a thread, because name resolution and waits for an answer cannot be interrupted otherwise.

    Returns:
        None on success, the exception that `function` raised, or NoAnswerError after the time limit.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            function()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="hydrant-call")
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        return NoAnswerError(f"no answer within {timeout:g} s")
    return errors[0] if errors else None


@contextlib.contextmanager
def trackers_warmed_up(config: Mapping[str, Any]) -> Generator[None]:
    """Let the trackers start what takes long, while the block prepares the run and starts them."""
    from hydrant.safety.targets import locate  # with YAML

    with contextlib.ExitStack() as stack:
        for key, node in _nodes(config).items():
            target = locate(node["_target_"], f"{key}._target_")
            if isinstance(target, type) and issubclass(target, Tracker):
                stack.enter_context(target.warmed_up(node))
        yield


class Trackers(Tracker):
    """Passes what a run reports to each of its trackers: `tracker`, and those under `trackers` by name.

    A tracker that raises gets nothing more, with one warning; the others and the run go on.

    Raises:
        ConfigError: a tracker rejects its settings. Those that have started are ended.
        HydrantError: a tracker refuses to start for another reason, such as a damaged file.
    """

    def __init__(self, config: Mapping[str, Any], identity: RunIdentity, num_updates: int) -> None:
        nodes = _nodes(config)
        self._trackers = dict[str, Tracker]()
        try:
            for key in nodes:
                self._start(nodes, key, identity, num_updates)
        except BaseException:
            self.finish(1, {})
            raise

    def log(self, row: Mapping[str, float]) -> None:
        self._each("log", row)

    def image(self, key: str, path: Path) -> None:
        self._each("image", key, path)

    def text(self, key: str, text: str) -> None:
        self._each("text", key, text)

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._each("table", key, columns, rows)

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
        self._each("histograms", num_updates, histograms)

    def file(self, path: Path) -> None:
        self._each("file", path)

    def checkpoint(self, path: Path) -> None:
        self._each("checkpoint", path)

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None:
        self._each("finish", exit_status, summary)

    def recorded(self) -> Mapping[str, Any]:
        """Return the descriptions of all trackers. If several have a key, the first one decides."""
        return dict(ChainMap(*self._each("recorded")))

    def _start(self, nodes: Mapping[str, Any], key: str, identity: RunIdentity, num_updates: int) -> None:
        from hydrant.config.instantiate import instantiate  # Hydra, which the loop does not need

        try:
            self._trackers[key] = instantiate(nodes, key)(identity, num_updates)
        except ConfigError as error:  # a tracker names its keys as if it were the only one
            raise error.at(error.key.replace("tracker.", f"{key}.", 1)) from error
        except HydrantError:
            raise
        except Exception as error:  # the tracker's library, its store or its service
            _warn(key, error)

    def _each(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of each tracker; return their results."""
        results = list[Any]()
        for key, tracker in list(self._trackers.items()):
            try:
                results.append(getattr(tracker, method)(*arguments))
            except Exception as error:  # the tracker's library, its store or its service
                del self._trackers[key]
                _warn(key, error)
        return results


def _nodes(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"tracker": config["tracker"]} | {f"trackers.{name}": n for name, n in config["trackers"].items()}


def _warn(key: str, error: Exception) -> None:
    message = "%s: %s; it gets nothing more, training continues, and metrics.jsonl has the numbers"
    log.warning(message, key, typed_line(error))
    log.debug("%s failed", key, exc_info=error)
