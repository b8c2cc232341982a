"""The tracker that writes the files of TensorBoard."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.trackers import Histogram, RunIdentity, Tracker


class TensorBoardTracker(Tracker):
    """Logs every metric as a scalar over `num_updates`, the config as a table, pictures as images.

    A row is on disk after `flush_seconds` at the latest. Values are float32, like TensorBoard's scalars. Rows of an
    earlier process past `num_updates` are hidden, because a resumed run writes them again.
    """

    def __init__(self, identity: RunIdentity, num_updates: int, *, flush_seconds: float) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter  # slow: one second

        self._num_updates = num_updates
        # The row of the checkpoint's update stays, because it was logged before the checkpoint. A run from 0 hides all.
        purge_step = num_updates + 1 if num_updates else 0
        flush_secs: Any = flush_seconds  # typed int, but a float works: it is added to a time
        folder = str(identity.folder / "tensorboard")
        self._writer: Any = SummaryWriter(folder, purge_step=purge_step, flush_secs=flush_secs)  # not typed
        rows = "".join(f"| `{key}` | `{value}` |\n" for key, value in identity.config.items())
        self._writer.add_text("config", f"| key | value |\n| --- | --- |\n{rows}", num_updates)

    def log(self, row: Mapping[str, float]) -> None:
        """Log a row: `num_updates` is its step and `time` its wall time."""
        from tensorboard.compat.proto import summary_pb2

        self._num_updates = int(row["num_updates"])
        proto: Any = summary_pb2  # generated at run time, without types
        scalars = [(key, value) for key, value in row.items() if key not in ("num_updates", "time")]
        values = [proto.Summary.Value(tag=key, simple_value=value) for key, value in scalars]
        # One event for all scalars: `add_scalar` writes one event each, which takes several times as long.
        self._writer.file_writer.add_summary(proto.Summary(value=values), self._num_updates, row["time"])

    def image(self, key: str, path: Path) -> None:
        """Log a picture at the last logged update."""
        import numpy as np
        from PIL import Image

        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB"))  # (height, width, 3)
        self._writer.add_image(key, pixels, self._num_updates, dataformats="HWC")

    def text(self, key: str, text: str) -> None:
        """Log a text at the last logged update."""
        preformatted = "".join(f"    {line}\n" for line in text.splitlines())  # else it is read as Markdown
        self._writer.add_text(key, preformatted, self._num_updates)

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table as a Markdown text at the last logged update."""
        lines = [columns, ["---"] * len(columns), *rows]
        text = "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
        self._writer.add_text(key, text, self._num_updates)

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
        for key, histogram in histograms.items():
            self._writer.add_histogram_raw(
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

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None:
        """Write pending rows and close the file."""
        del exit_status, summary
        self._writer.close()
