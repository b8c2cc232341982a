"""`evaluate`: evaluate the model of a run on a split of its data."""

from collections.abc import Sequence

from hydrant.config.command_line import Flags, is_override
from hydrant.errors import ConfigError
from hydrant.runs.folder import newest_folders
from hydrant.terminal.console import tell
from hydrant.terminal.text import number


def main(arguments: Sequence[str]) -> int:
    """Print the metrics of a saved run and return the exit status."""
    options, words = Flags("evaluate", split="val", weights=str).split(arguments)
    if not words or is_override(words[0]):
        known = newest_folders("hydrant evaluate outputs/first", with_sweeps=False)
        raise ConfigError("", "evaluate what?", remedy=f"Give a run folder or a checkpoint{known}")
    from hydrant.runs.load import evaluate_saved, open_run  # imports torch

    saved = open_run(words[0], words[1:], weights=options.weights)
    split = saved.split(options.split, "--split")
    values = evaluate_saved(saved, split)
    source = f"{saved.source} (update {saved.num_updates}), {split.source.num_samples:,} samples"
    width = max(20, *map(len, values))
    lines = [source, *(f"  {name:<{width}} {number(value, 7)}" for name, value in values.items())]
    content = {"checkpoint": str(saved.checkpoint), "num_updates": saved.num_updates, **values}
    tell("\n".join(lines), content)
    return 0
