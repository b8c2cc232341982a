"""Complete a command line for a shell, from the conf files alone: to import Hydra would take longer."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.commands.registry import commands, flags_of
from hydrant.config.groups import group_options, option_content, option_fields
from hydrant.errors import ConfigError

SCRIPTS = ("install=bash", "uninstall=bash", "install=zsh", "install=fish")
"""The words after `-sc` for which there is a script of the shell."""


def complete(arguments: Sequence[str]) -> str:
    """Return the completions of the last word of a shell's line, or what a shell runs to have them.

    The scripts of zsh and fish complete `hydrant` alone.
    """
    if scripts := [word for word in arguments if word in SCRIPTS]:
        script = Path(__file__).with_name("shells").joinpath(scripts[0].replace("=", "."))
        return script.read_text(encoding="utf-8")
    if (line := os.environ.get("COMP_LINE")) is None:
        raise ConfigError("", f"-sc needs one of {', '.join(SCRIPTS)}", about="-sc")
    words = line.split(" ")
    command = arguments[0] if arguments[0] in commands() else "".join(words[1:2])  # train.py passes it itself
    matches = completions(words[2:]) if len(words) > 2 else list(commands())
    if words[-1].startswith("-") and command in commands():
        matches = flags_of(command)
    return "\n".join(match for match in matches if match.startswith(words[-1]))


def completions(words: Sequence[str]) -> list[str]:
    """Return the completions of the last of these overrides, from the conf files.

    >>> completions(["precision=f"]), completions(["see"])
    (['precision=fp16', 'precision=fp32', 'precision=fp64', 'precision=fp8'], ['seed='])
    >>> completions(["optimizer=sgd", "optimizer.m"])
    ['optimizer.momentum=']
    """
    *earlier, word = words
    options = group_options()
    primary = {name: value for name, value in option_content("", "train").items() if name != "hydra"}
    group, equals, _ = word.partition("=")
    node, dot, _ = word.partition(".")
    if equals:
        candidates = [f"{group}={option}" for option in options.get(group, [])]
    elif dot:
        chosen = _chosen(primary)
        for name, _, option in (override.partition("=") for override in earlier):
            chosen |= {name: option} if name in chosen else _chosen(option_content(name, option))
        keys = option_fields(node, chosen[node]) if chosen.get(node) else primary.get(node)
        candidates = [f"{node}.{key}" for key in _shown(keys)]
    else:
        candidates = [*_shown(primary), *(f"{name}." for name in _chosen(primary) if name in options)]
        candidates += [f"{name}=" for name in options]
    return sorted({candidate for candidate in candidates if candidate.startswith(word)})


def _shown(node: Any) -> list[str]:
    """Return the keys of a mapping, each with what comes after it; none of another value."""
    items = node.items() if isinstance(node, dict) else ()
    return [
        f"{key}{'.' if isinstance(value, (dict, list)) else '='}" for key, value in items if key != "defaults"
    ]


def _chosen(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the option of each group that the defaults list of a config file chooses."""
    entries = [entry for entry in content.get("defaults", []) if isinstance(entry, dict)]
    chosen = [(group, option) for entry in entries for group, option in entry.items() if option]
    return {group.removeprefix("override ").lstrip("/"): str(option) for group, option in chosen}
