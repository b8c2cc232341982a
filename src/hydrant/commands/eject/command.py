"""`hydrant eject`: write a config as one file of plain PyTorch."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from omegaconf import DictConfig, OmegaConf

from hydrant.config.check import check
from hydrant.config.command_line import Flags, is_override, writing_to
from hydrant.config.compose import compose
from hydrant.config.passed import PREFIX as PASSED
from hydrant.errors import ConfigError, first_line
from hydrant.runs.folder import RunFolder
from hydrant.runs.resume import saved_config
from hydrant.safety.consent import check_consent
from hydrant.safety.targets import targets_of
from hydrant.terminal.answer import tell

_LINE_LENGTH = 110
_MOVE = "move it into a module (a file that can be imported)"
_COLLAPSE = "format.skip-magic-trailing-comma=true"


def main(arguments: Sequence[str]) -> int:
    """Write the program of a config and return the exit status."""
    parser = Flags("eject")
    parser.add_argument("--out", type=Path, default=Path("run.py"))
    options, words = parser.split(arguments)
    folder: str | None = None
    if words and not is_override(words[0]):
        config, folder = config_of_run(words[0], words[1:]), f"{words[0].rstrip('/')}_ejected"
    else:
        config = _checked(compose(words))
    text, num_ranks = program(config, words, folder), config["parallel"]["num_processes"]
    if options.out.exists() or options.out.is_symlink():
        raise ConfigError("--out", f"{options.out} exists already", remedy="give another file")
    with writing_to("--out", options.out), options.out.open("x", encoding="utf-8") as file:
        file.write(text)
    command = "python" if num_ranks == 1 else f"torchrun --nproc-per-node {num_ranks}"
    num_lines, command = text.count("\n"), f"{command} {options.out}"
    content = {"file": str(options.out), "num_lines": num_lines, "start": command}
    tell(f"{options.out}: {num_lines} lines; start it with: {command}", content)
    return 0


def config_of_run(folder: str, overrides: Sequence[str]) -> Mapping[str, Any]:
    """Return the checked config of a run folder.

    Raises:
        ConfigError: it has none, or a part of it is not in a file.
    """
    if overrides:
        remedy = "give the folder alone, or only overrides"
        raise ConfigError("eject", f"{overrides[0]} after a run folder", remedy=remedy)
    saved = saved_config(RunFolder(Path(folder)), "eject")
    check_consent(saved.get("allow_targets"), overrides)
    return _checked(OmegaConf.create(saved))


def _checked(node: DictConfig) -> Mapping[str, Any]:
    """Return the checked config, whose parts are in files.

    Raises:
        ConfigError: a part is an object that Python passed, or is defined in a script or a notebook.
    """
    raw: Any = OmegaConf.to_container(node)
    for key in ("model", "data", "task"):
        if str(raw[key].get("_target_")).startswith(PASSED):
            raise ConfigError(key, _passed(key, str(raw[key]["type"])))
    for key, target in targets_of(raw):
        if target.startswith("__main__."):
            message = f"{target} is defined in a script or a notebook"
            raise ConfigError(key.removesuffix("._target_"), message, remedy=_MOVE)
    return check(node)


def _passed(key: str, kind: str) -> str:
    """Return what to do with an object of this class that Python passed."""
    module, _, name = kind.rpartition(".")
    move, module = (f"{_MOVE}, and ", "module") if module == "__main__" else ("", module)
    message = f"{kind} was passed from Python, so no config says how it is made"
    return f"{message}; {move}name it in the config: {key}._target_={module}.{name}"


def program(config: Mapping[str, Any], overrides: Sequence[str] = (), folder: str | None = None) -> str:
    """Return the program of a checked config: one file of plain PyTorch, which writes into `folder`.

    Raises:
        ConfigError: the config cannot run, or it has an option that cannot be ejected; names its key.
    """
    from hydrant.commands.eject.assemble import assemble
    from hydrant.commands.eject.cutting import cut
    from hydrant.commands.eject.refusals import check_possible
    from hydrant.training.prepare.build import prepare  # imports torch

    check_possible(config)
    plan = prepare(config, is_preview=True)
    if plan.clock.unmeasured_sizes:
        message = "seconds are measured when a run starts, so the number of updates is not known here"
        raise ConfigError("duration", message, remedy="give all durations in updates, ep or sa")
    folder = folder or f"outputs/{config['name'] or 'run'}"
    return _compiled(assemble(cut(plan, folder), describe(config, overrides)))


def _compiled(text: str) -> str:
    """Return the text of a program as ruff formats it, if it is Python.

    Raises:
        ConfigError: it is not.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of the user's own code
            compile(text, "program", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise ConfigError("eject", f"this config gives no program ({first_line(error)})") from error
    return formatted(text)


def describe(config: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """Return the docstring of a program."""
    keys = ("model", "data", "optimizer", "scheduler")
    model, data, optimizer, schedule = (_title(config[key]) for key in keys)
    what = f"Train the model {model} on the data {data} with {optimizer} and the learning rate schedule {schedule}."
    command = " ".join(["hydrant eject", *overrides])
    how = f"Written by `{command}`. It trains bit for bit as `hydrant train` does, and continues where it was stopped."
    return f"{what}\n\n{fill(how, _LINE_LENGTH, break_long_words=False, break_on_hyphens=False)}\n"


def _title(node: Mapping[str, Any]) -> str:
    """Return the name of a part: that of its class or function, or of what it takes from a library."""
    name = str(node["_target_"]).rpartition(".")[2]
    return str(node["name"]) if name in ("timm_optimizer", "library_optimizer", "timm_model") else name


def formatted(text: str) -> str:
    """Return the text with sorted imports and formatted, by ruff; unchanged if ruff is not installed."""
    beside = Path(sys.executable).with_name("ruff")
    ruff = str(beside) if beside.exists() else shutil.which("ruff")
    if ruff is None:
        return text
    for command in (["check", "--select=I", "--fix", "--quiet"], ["format", "--config", _COLLAPSE]):
        words = [ruff, *command, "--isolated", "--line-length", str(_LINE_LENGTH), "-"]
        text = subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout
    return text
