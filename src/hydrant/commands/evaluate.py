"""`evaluate`: evaluate the model of a run on a split of its data."""

from collections.abc import Sequence

from hydrant.config.command_line import Flags
from hydrant.records import Answer
from hydrant.runs.folder import named_run
from hydrant.terminal.console import tell


class Evaluate(Answer, forbid_unknown_fields=False):
    """The metrics of a checkpoint, each under its name, such as `val/loss`: a number, or null."""

    checkpoint: str
    num_updates: int


def main(arguments: Sequence[str]) -> int:
    """Print the metrics of a saved run and return the exit status."""
    options, words = Flags("evaluate", split="val", weights=str).split(arguments)
    run = named_run("evaluate", words)
    from hydrant.runs.load import evaluate_saved, open_run  # imports torch

    saved = open_run(run, words[1:], weights=options.weights)
    split = saved.split(options.split, "--split")
    values = evaluate_saved(saved, split)
    source = f"{saved.source} (update {saved.num_updates}), {split.source.num_samples:,} samples"
    width = max(20, *map(len, values))
    lines = [source, *(f"  {name:<{width}} {value:.7g}" for name, value in values.items())]
    tell("\n".join(lines), {"checkpoint": str(saved.checkpoint), "num_updates": saved.num_updates, **values})
    return 0
