"""The commands of `hydrant`: one record for each, which the command line, its help and its completion read."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command: the function `main` of the module of its name, imported when it is called.

    `help/<name>.txt` is what its `--help` prints.

    Args:
        summary: what `hydrant --help` says about it.
        groups: a pattern of the config groups whose overrides it takes.
        writes: its results are files, or at W&B. The result of any other command is what it prints.
        runs_own_code: it needs parts of the user's, and so imports from the working folder.
    """

    name: str
    summary: str
    groups: str = ""
    writes: bool = False
    runs_own_code: bool = True


_SAVED_RUN, _ONE_RUN = "data|precision|task", "(?!sweep$|hydra/).*"

# fmt: off
_COMMANDS = (
    Command("init", "write a project of your own that trains at once", runs_own_code=False),
    Command("trust", "let configs name the packages of a project of yours", runs_own_code=False),
    Command("tokenize", "make the tokens of a language model's data from text", writes=True, runs_own_code=False),
    Command("train", "train a model, or a sweep of them with --multirun", groups=".*", writes=True),
    Command("study", "tune settings equally, then test them with fresh seeds until the best is known",
            groups="(?!hydra/sweeper).*", writes=True),
    Command("preview", "show the schedules, groups and size of a config without training", groups=_ONE_RUN),
    Command("evaluate", "evaluate a run or a checkpoint", groups=_SAVED_RUN),
    Command("predict", "write what a run predicts for files, tensors or a split", groups=_SAVED_RUN),
    Command("export", "write a run's model as safetensors, torch_export or onnx", writes=True),
    Command("diagnose", "explain what torch.compile does with a config", groups=_ONE_RUN),
    Command("bench", "compare precisions and compile settings by speed, memory and result", groups=_ONE_RUN,
            writes=True),
    Command("status", "show the progress of a sweep's runs", runs_own_code=False),
    Command("stop", "ask a run or a sweep to save and end", writes=True, runs_own_code=False),
    Command("compare", "compare runs and sweeps: groups over seeds, the winner, a page", runs_own_code=False),
    Command("log", "list what was asked and what came out, a line for each run, sweep and study",
            runs_own_code=False),
    Command("sync", "send the offline data of runs to W&B, once", writes=True, runs_own_code=False),
    Command("docs", "print pages of the documentation", runs_own_code=False),
    Command("explain", "print what each option and key means, and where its file is", runs_own_code=False),
    Command("schema", "write JSON schemas by which editors complete and check YAML"),
    Command("list", "list the config groups with their options, or the compile backends", runs_own_code=False),
)
# fmt: on

COMMANDS = {command.name: command for command in _COMMANDS}
"""The commands by name."""

RETIRED = {
    "agent": "`wandb agent` trains the runs of a W&B sweep; `hydrant docs wandb_sweeps` has the files",
    "watch": "`hydrant compare RUNS --html FILE --follow` writes the page again while runs train",
    "eject": "`hydrant docs own-loop` shows how to train a saved run by a loop of your own",
}
"""By the name of a command of the version before: what takes its place."""

_FIRST = {
    "Start": ("init", "train", "preview"),
    "Look": ("status", "compare", "log", "stop"),
    "Use": ("evaluate", "predict", "export"),
}

SECTIONS = {
    **_FIRST,
    "More": tuple(name for name in COMMANDS if not any(name in names for names in _FIRST.values())),
}
"""The names of the commands by what they are for, as `hydrant --help` shows them."""
