"""The trackers of a run as one object, and the boundary that keeps their failures away from the run."""

import contextlib
from collections import ChainMap
from collections.abc import Generator, Mapping
from functools import partial
from typing import Any

from hydrant.config.instantiate import instantiate
from hydrant.errors import ConfigError, HydrantError, log, typed_line
from hydrant.safety.targets import locate
from hydrant.trackers.base import RunIdentity, Tracker


@contextlib.contextmanager
def trackers_warmed_up(config: Mapping[str, Any]) -> Generator[None]:
    """Let the trackers start what takes long, while the block prepares the run and starts them."""
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
        for method in ("log", "image", "text", "table", "histograms", "file", "checkpoint", "finish"):
            setattr(self, method, partial(self._each, method))
        try:
            for key in nodes:
                self._start(nodes, key, identity, num_updates)
        except BaseException:
            self.finish(1, {})
            raise

    def describe(self) -> Mapping[str, Any]:
        """Return the descriptions of all trackers. If several have a key, the first one decides."""
        return dict(ChainMap(*self._each("describe")))

    def _start(self, nodes: Mapping[str, Any], key: str, identity: RunIdentity, num_updates: int) -> None:
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
