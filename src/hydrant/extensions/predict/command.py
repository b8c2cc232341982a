"""`predict`: write what the model of a run predicts for files, tensors or a split of its data."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from hydrant.config.command_line import Flags, is_override
from hydrant.errors import ConfigError
from hydrant.files.plain_values import PositiveInt, check_value
from hydrant.interface import Run, Weights, known_arguments
from hydrant.records import Answer
from hydrant.terminal.console import answer, relative, tell, wants_json

if TYPE_CHECKING:
    from hydrant.extensions.predict.prediction import Predictions


class Predict(Answer):
    """The predictions, or the file with them (`--out`).

    Attributes:
        num_damaged: Samples that could not be read.
        rows: One for each sample.
    """

    checkpoint: str
    file: str | UnsetType = UNSET
    num_predictions: int | UnsetType = UNSET
    num_damaged: int | UnsetType = UNSET
    columns: Sequence[str] | UnsetType = UNSET
    rows: Sequence[Sequence[Any]] | UnsetType = UNSET


def main(arguments: Sequence[str]) -> int:
    """Write or print predictions and return the exit status."""
    flags = Flags("predict", out=Path, weights=str, batch_size=int, probabilities=False)
    options, words = flags.split(arguments)
    overrides = [word for word in words[1:] if is_override(word)]
    inputs = [word for word in words[1:] if word not in overrides]
    if not inputs or is_override(words[0]):
        run = "outputs/first" if not words or is_override(words[0]) else words[0]
        example = f"hydrant predict {shlex.quote(run)} val --out predictions.csv"
        remedy = f"Give a run, and then files, a folder or a split: {example}"
        raise ConfigError("", "predict what?", remedy=remedy)
    check_value("--batch-size", PositiveInt | None, options.batch_size)
    from hydrant.extensions.predict import prediction as predictions  # imports torch
    from hydrant.runs.load import open_run

    if options.out is not None:
        predictions.format_of(options.out)  # before the run is opened, which takes a while
    saved = open_run(words[0], overrides, weights=options.weights)
    samples = predictions.find_inputs(saved, inputs)
    prediction = predictions.Prediction(saved, samples, options.batch_size, options.probabilities)
    if options.out is None and wants_json():
        columns, rows = predictions.predictions_of(prediction)
        answer({"checkpoint": relative(saved.checkpoint), "columns": columns, "rows": rows})
        return 0
    if options.out is None:
        return predictions.print_predictions(prediction)
    count = predictions.write_predictions(prediction, options.out)
    left_out = samples.source.num_samples - count
    checkpoint, more = relative(saved.checkpoint), f", without {left_out:,} damaged" if left_out else ""
    noun = "prediction" if count == 1 else "predictions"
    counts = {"num_predictions": count, "num_damaged": left_out}
    content = {"checkpoint": checkpoint, "file": str(options.out), **counts}
    tell(f"{options.out}: {count:,} {noun} of {samples.title}{more}, by {saved.source}", content)
    return 0


@known_arguments
def predict(
    run: Run,
    inputs: Any,
    *,
    weights: Weights = "last",
    probabilities: bool = False,
    batch_size: int | None = None,
) -> "Predictions":
    """Return what the model of a run predicts, as `hydrant predict` does.

    Args:
        inputs: the name of a split, a file, a folder, or a list of files; or inputs in memory: an array or tensor (N,
            ...) as the files of `data=tensors` hold them, or a dict of these.
        weights: see `hydrant.interface.Weights`.
        probabilities: whether the table has a column for the probability of each class.
        batch_size: how many samples are predicted at once; None: `eval_batch_size` of the run.

    Raises:
        ConfigError: as `Run.evaluate`; or the data of the run cannot read the inputs.
        DataError: a file is damaged, or all are.
    """
    with run.saved(weights) as saved:
        from hydrant.extensions.predict.prediction import collect

        return collect(saved, inputs, batch_size, probabilities=probabilities)
