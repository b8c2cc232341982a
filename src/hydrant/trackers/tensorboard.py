"""The TensorBoard tracker: event files in the run folder's `tensorboard/`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.trackers.base import Histogram, RunIdentity, Tracker

log = logging.getLogger("hydrant")


class TensorBoardTracker(Tracker):
    """Logs every metric as a scalar over `num_updates`, the config as a table, pictures as images.

    A row is on disk after `flush_seconds` at the latest. Values are float32, like TensorBoard's scalars. Rows of an
    earlier process past `num_updates` are hidden, because a resumed run writes them again.
    """

    def __init__(self, identity: RunIdentity, num_updates: int, *, flush_seconds: float) -> None:
        self._num_updates = num_updates
        self._folder = identity.folder / "tensorboard"
        self._writer: Any = None  # torch's SummaryWriter: its methods are not typed
        self._try(lambda: self._open(identity.config, flush_seconds))

    def log(self, row: Mapping[str, float]) -> None:
        """Log a row: `num_updates` is its step and `time` its wall time."""
        self._num_updates = int(row["num_updates"])

        def write(writer: Any) -> None:
            from tensorboard.compat.proto import summary_pb2

            proto: Any = summary_pb2  # generated at run time, without types
            scalars = [(key, value) for key, value in row.items() if key not in ("num_updates", "time")]
            values = [proto.Summary.Value(tag=key, simple_value=value) for key, value in scalars]
            # One event for all scalars: `add_scalar` writes one event each, which takes several times as long.
            writer.file_writer.add_summary(proto.Summary(value=values), self._num_updates, row["time"])

        self._send(write)

    def image(self, key: str, path: Path) -> None:
        """Log a picture at the last logged update."""

        def write(writer: Any) -> None:
            import numpy as np
            from PIL import Image

            with Image.open(path) as picture:
                pixels = np.asarray(picture.convert("RGB"))  # (height, width, 3)
            writer.add_image(key, pixels, self._num_updates, dataformats="HWC")

        self._send(write)

    def text(self, key: str, text: str) -> None:
        """Log a text at the last logged update."""
        preformatted = "".join(f"    {line}\n" for line in text.splitlines())  # else it is read as Markdown
        self._send(lambda writer: writer.add_text(key, preformatted, self._num_updates))

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table as a Markdown text at the last logged update."""
        lines = [columns, ["---"] * len(columns), *rows]
        text = "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
        self._send(lambda writer: writer.add_text(key, text, self._num_updates))

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
        """Do nothing: TensorBoard's plugins read their files from the run folder."""

    def checkpoint(self, path: Path) -> None:
        """Do nothing: TensorBoard has no checkpoints."""

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None:
        """Write pending rows and close the file."""
        del exit_status, summary
        self._send(lambda writer: writer.close())
        self._writer = None

    def describe(self) -> Mapping[str, Any]:
        return {}

    def _open(self, config: Mapping[str, Any], flush_seconds: float) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter  # slow: one second

        # The row of the checkpoint's update stays, because it was logged before the checkpoint. A run from 0 hides all.
        purge_step = self._num_updates + 1 if self._num_updates else 0
        flush_secs: Any = flush_seconds  # typed int, but a float works: it is added to a time
        writer: Any = SummaryWriter(str(self._folder), purge_step=purge_step, flush_secs=flush_secs)
        rows = "".join(f"| `{key}` | `{value}` |\n" for key, value in config.items())
        writer.add_text("config", f"| key | value |\n| --- | --- |\n{rows}", self._num_updates)
        self._writer = writer

    def _send(self, write: Callable[[Any], None]) -> None:
        if self._writer is not None:
            self._try(lambda: write(self._writer))

    def _try(self, action: Callable[[], None]) -> None:
        """Run `action`. The first failure ends the logging, not the run."""
        try:
            action()
        except Exception as error:  # a full disk, a missing package, an unreadable picture
            self._writer = None
            log.warning(
                "TensorBoard: logging to %s stopped (%s: %s); training continues, metrics.jsonl has the numbers",
                self._folder,
                type(error).__name__,
                error,
            )
