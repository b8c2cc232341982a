"""The trackers of a run as one object, and the boundary that keeps their failures away from the run."""

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.config.instantiate import instantiate
from hydrant.errors import ConfigError, HydrantError, log, typed_line
from hydrant.safety.targets import locate
from hydrant.trackers.base import Histogram, RunIdentity, Tracker


@contextlib.contextmanager
def trackers_warmed_up(config: Mapping[str, Any]) -> Generator[None]:
    """Let the trackers start what takes long, while the block prepares the run and starts them."""
    with contextlib.ExitStack() as stack:
        for key, node in _nodes(config).items():
            target = locate(node["_target_"], f"{key}._target_")
            if isinstance(target, type) and issubclass(target, Tracker):
                stack.enter_context(target.warmed_up(node))
        yield


class Trackers:
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
        self._each(lambda tracker: tracker.log(row))

    def image(self, key: str, path: Path) -> None:
        self._each(lambda tracker: tracker.image(key, path))

    def text(self, key: str, text: str) -> None:
        self._each(lambda tracker: tracker.text(key, text))

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._each(lambda tracker: tracker.table(key, columns, rows))

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
        self._each(lambda tracker: tracker.histograms(num_updates, histograms))

    def file(self, path: Path) -> None:
        self._each(lambda tracker: tracker.file(path))

    def checkpoint(self, path: Path) -> None:
        self._each(lambda tracker: tracker.checkpoint(path))

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None:
        self._each(lambda tracker: tracker.finish(exit_status, summary))

    def describe(self) -> Mapping[str, Any]:
        """Return the descriptions of all trackers. If several have a key, the first one decides."""
        described = dict[str, Any]()
        self._each(lambda tracker: described.update({**tracker.describe(), **described}))
        return described

    def _start(self, nodes: Mapping[str, Any], key: str, identity: RunIdentity, num_updates: int) -> None:
        try:
            self._trackers[key] = instantiate(nodes, key)(identity, num_updates)
        except ConfigError as error:  # a tracker names its keys as if it were the only one
            raise ConfigError(
                error.key.replace("tracker.", f"{key}.", 1), error.reason, remedy=error.remedy
            ) from error
        except HydrantError:
            raise
        except Exception as error:  # the tracker's library, its store or its service
            _warn(key, error)

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for key, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:  # the tracker's library, its store or its service
                del self._trackers[key]
                _warn(key, error)


def _nodes(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"tracker": config["tracker"]} | {f"trackers.{name}": n for name, n in config["trackers"].items()}


def _warn(key: str, error: Exception) -> None:
    message = "%s: %s; it gets nothing more, training continues, and metrics.jsonl has the numbers"
    log.warning(message, key, typed_line(error))
    log.debug("%s failed", key, exc_info=error)
