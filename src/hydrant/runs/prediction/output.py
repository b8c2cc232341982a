"""Write predictions into a file, which appears when it is complete, or print them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydrant.config.command_line import writing_to
from hydrant.errors import DataError
from hydrant.files.atomic_write import replacing
from hydrant.runs.prediction.formats import Format, csv_text, format_of
from hydrant.runs.prediction.inputs import check_not_read
from hydrant.runs.prediction.partial_file import PartialFile
from hydrant.runs.prediction.prediction import Prediction
from hydrant.runs.prediction.table import Table
from hydrant.terminal.console import emit, notice, output_status, relative
from hydrant.terminal.progress_bar import ProgressBar


def print_predictions(prediction: Prediction) -> int:
    """Print the predictions as CSV, each batch when it is there, while stdout can be written. Return the exit status.

    Raises:
        ConfigError: they have no place in a table.
        DataError: no sample can be read.
    """
    table: Table | None = None
    for arrays in prediction.batches():
        if table is None:
            table = prediction.table(arrays)
            emit(csv_text([table.columns]).rstrip("\n"))
        emit(csv_text(table.rows(arrays)).rstrip("\n"))
        if status := output_status():  # `| head` has seen enough
            return status
    if table is None:
        raise _no_samples(prediction)
    return 0


def predictions_of(prediction: Prediction) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and the rows of what `print_predictions` prints.

    Raises:
        ConfigError: they have no place in a table.
        DataError: no sample can be read.
    """
    table, rows = None, list[list[Any]]()
    for arrays in prediction.batches():
        table = table or prediction.table(arrays)
        rows += table.rows(arrays)
    if table is None:
        raise _no_samples(prediction)
    return list(table.columns), rows


def write_predictions(prediction: Prediction, out: Path) -> int:
    """Write the predictions into a file, and return their number.

    Until the file is complete, they are in a file beside it; the same command continues after its last batch.

    Raises:
        ConfigError: the file cannot be written, cannot hold these predictions, or holds samples that are read.
        DataError: a sample cannot be read, or none can.
    """
    file_format, path = format_of(out), out.resolve()  # write through a link instead of replacing it
    check_not_read(path, prediction.inputs, prediction.saved.plan)
    partial_path = path.with_name(f"{path.name}.partial")
    with writing_to("--out", out), PartialFile.open(partial_path, prediction.identity) as partial:
        try:
            _fill(partial, prediction, file_format)
        except BaseException:
            if partial.num_rows:
                done, name = f"{partial.num_rows:,} predictions", relative(partial_path)
                notice(f"{done} are in {name}; the same command continues there")
            else:
                partial_path.unlink()
            raise
        with replacing(path) as file:
            file_format.write(file, partial, prediction)
        partial_path.unlink()
        return partial.num_rows


def _fill(partial: PartialFile, prediction: Prediction, file_format: Format) -> None:
    """Add the batches that are missing."""
    total, size = prediction.inputs.source.num_samples, prediction.batch_size
    first = min(-(-partial.next_number // size) * size, total)
    if partial.num_rows:
        file_format.check(prediction, partial.last)
        notice(f"continues after {first:,} of {total:,} samples")
    bar = ProgressBar.start(total, first, unit="samples")
    try:
        for arrays in prediction.batches(first) if first < total else ():
            if not partial.num_rows:
                file_format.check(prediction, arrays)
            partial.append(arrays)
            bar.advance(partial.next_number - first)
            first = partial.next_number
    finally:
        bar.close()
    if not partial.num_rows:
        raise _no_samples(prediction)


def _no_samples(prediction: Prediction) -> DataError:
    return DataError(f"no sample of {prediction.inputs.title} can be read; the warnings above say why")
