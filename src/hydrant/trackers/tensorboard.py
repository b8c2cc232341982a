"""Event files for TensorBoard, in the run folder's `tensorboard/`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hydrant.trackers.base import Histogram, RunIdentity

log = logging.getLogger("hydrant")


class TensorBoardTracker:
    """Every metric as a scalar over `num_updates`, the config as a table, pictures as images.

    `flush_seconds` is how long a row may wait before it is on disk. Values are float32, as TensorBoard's
    scalars are. Rows an earlier process wrote past `num_updates` are hidden: a resumed run writes them again.
    """

    def __init__(self, identity: RunIdentity, num_updates: int, *, flush_seconds: float) -> None:
        self._num_updates = num_updates
        self._folder = identity.folder / "tensorboard"
        self._writer: Any = None  # torch's SummaryWriter, whose methods have no types
        self._guarded(lambda: self._open(identity.config, flush_seconds))

    def log(self, row: Mapping[str, float]) -> None:
        """One row; `num_updates` is its x and `time` its wall clock."""
        self._num_updates = int(row["num_updates"])

        def write(writer: Any) -> None:
            from tensorboard.compat.proto import summary_pb2

            proto: Any = summary_pb2  # made at run time, without types
            scalars = [(key, value) for key, value in row.items() if key not in ("num_updates", "time")]
            values = [proto.Summary.Value(tag=key, simple_value=value) for key, value in scalars]
            # One event for all: `add_scalar` makes one of each, for several times the work.
            writer.file_writer.add_summary(proto.Summary(value=values), self._num_updates, row["time"])

        self._send(write)

    def image(self, key: str, path: Path) -> None:
        """A picture, shown at the last logged update."""

        def write(writer: Any) -> None:
            import numpy as np
            from PIL import Image

            with Image.open(path) as picture:
                pixels = np.asarray(picture.convert("RGB"))  # (height, width, 3)
            writer.add_image(key, pixels, self._num_updates, dataformats="HWC")

        self._send(write)

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
        def write(writer: Any) -> None:
            for key, histogram in histograms.items():
                writer.add_histogram_raw(
                    key,
                    min=histogram.low,
                    max=histogram.high,
                    num=sum(histogram.counts),
                    sum=histogram.total,
                    sum_squares=histogram.squares,
                    bucket_limits=histogram.edges[1:],
                    bucket_counts=list(histogram.counts),
                    global_step=num_updates,
                )

        self._send(write)

    def file(self, path: Path) -> None:
        """Nothing to do: its plugins find their files in the run folder."""

    def checkpoint(self, path: Path) -> None:
        """Nothing to do: it shows none."""

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None:
        """Write what waits and close the file."""
        del exit_status, summary
        self._send(lambda writer: writer.close())
        self._writer = None

    def describe(self) -> Mapping[str, Any]:
        return {}

    def _open(self, config: Mapping[str, Any], flush_seconds: float) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter  # takes a second; only its users pay

        # The checkpoint's own row is older than the checkpoint and stays; a run from 0 hides everything.
        purge_step = self._num_updates + 1 if self._num_updates else 0
        # typed int, but only ever added to a time
        flush_secs: Any = flush_seconds
        writer: Any = SummaryWriter(str(self._folder), purge_step=purge_step, flush_secs=flush_secs)
        rows = "".join(f"| `{key}` | `{value}` |\n" for key, value in config.items())
        writer.add_text("config", f"| key | value |\n| --- | --- |\n{rows}", self._num_updates)
        self._writer = writer

    def _send(self, write: Callable[[Any], None]) -> None:
        if self._writer is not None:
            self._guarded(lambda: write(self._writer))

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do it; the first failure ends the logging, never the run."""
        try:
            action()
        except Exception as error:  # a full disk, a missing package, a picture that cannot be read
            self._writer = None
            log.warning(
                "TensorBoard: logging to %s stopped (%s: %s); the run goes on, metrics.jsonl has the numbers",
                self._folder,
                type(error).__name__,
                error,
            )
