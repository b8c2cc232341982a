"""Complete a command line for a shell. Most words need only the conf files; to import Hydra would take longer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from hydrant.config.groups import group_options, option_path
from hydrant.files.user_files import read_marked

# `hydrant`, or python with a script that calls hydrant.cli, also after `uv run`. Other scripts are never started.
INSTALL_BASH = r"""
hydrant_completion()
{
    local PATH="$PWD/.venv/bin:$PATH" words=(${COMP_LINE:0:COMP_POINT}) program line
    [[ "${words[0]} ${words[1]}" == "uv run" ]] && words=("${words[@]:2}")
    [[ "${words[0]}" == *.py ]] && words=(python "${words[@]}")
    case "${words[0]}" in
        hydrant|*/hydrant) program=("${words[0]}") ;;
        python*|*/python*) grep -qs "hydrant\.cli" "${words[1]}" || return; program=("${words[@]:0:2}") ;;
        *) return ;;
    esac
    line="${words[*]}"
    [[ "${COMP_LINE:0:COMP_POINT}" == *" " ]] && line+=" "
    COMPREPLY=($(compgen -W "$(COMP_LINE="$line" "${program[@]}" -sc query=bash 2> /dev/null)" -- "${line##* }"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F hydrant_completion hydrant python python3 train.py
complete -p uv &> /dev/null || complete -o nospace -o default -F hydrant_completion uv
"""

UNINSTALL_BASH = """
complete -r hydrant python python3 train.py
[[ $(complete -p uv 2> /dev/null) == *hydrant_completion* ]] && complete -r uv
unset -f hydrant_completion
"""


# The same questions in the other shells, for `hydrant` alone.
INSTALL_ZSH = r"""
_hydrant() {
    local PATH="$PWD/.venv/bin:$PATH" found
    found=("${(@f)$(COMP_LINE="${(j: :)words[1,CURRENT]}" hydrant -sc query=bash 2> /dev/null)}")
    [[ -n "${found[1]}" ]] && compadd -Q -S "" -a found || _files
}
compdef _hydrant hydrant
"""

INSTALL_FISH = r"""
function __hydrant_complete
    set -lx PATH $PWD/.venv/bin $PATH
    set -lx COMP_LINE (commandline --current-process --cut-at-cursor)
    hydrant -sc query=bash 2> /dev/null
end
complete --command hydrant --arguments "(__hydrant_complete)"
"""

INSTALL = {"bash": INSTALL_BASH, "zsh": INSTALL_ZSH, "fish": INSTALL_FISH}


class _NeedsHydra(Exception):
    """The config files have to be composed."""


def completions(words: Sequence[str]) -> list[str]:
    """Return the completions of the last of these overrides, from the conf files; empty if only Hydra knows them.

    >>> completions(["precision=f"]), completions(["see"])
    (['precision=fp16', 'precision=fp32', 'precision=fp64', 'precision=fp8'], ['seed='])
    >>> completions(["optimizer=sgd", "optimizer.m"])
    ['optimizer.momentum=']
    """
    *earlier, word = words
    options = group_options()
    group, equals, _ = word.partition("=")
    node, dot, _ = word.partition(".")
    try:
        if equals:
            candidates = [f"{group}={option}" for option in options.get(group, [])]
        elif dot:
            candidates = [f"{node}.{key}" for key in _shown(_node(node, _chosen(earlier, options)))]
        else:
            nodes = [f"{name}." for name in _defaults(options)]
            candidates = [*_shown(_entry()), *nodes, *(f"{name}=" for name in options)]
    except _NeedsHydra:
        return []
    return sorted({candidate for candidate in candidates if candidate.startswith(word)})


def _shown(node: Mapping[str, Any]) -> list[str]:
    return [f"{key}{'.' if isinstance(value, dict | list) else '='}" for key, value in node.items()]


def _chosen(overrides: Iterable[str], options: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the option of each group after these overrides."""
    chosen = _defaults(options)
    for override in overrides:
        group, _, option = override.lstrip("+~").partition("=")
        if group in options and group not in chosen:
            raise _NeedsHydra  # an experiment chooses options and changes keys
        if group in chosen:
            chosen[group] = option
    return chosen


def _defaults(options: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the option of each group that has one without overrides."""
    entries = [entry for entry in _read("", "train")["defaults"] if isinstance(entry, dict)]
    chosen = [(group, option) for entry in entries for group, option in entry.items() if option]
    return {group: option for group, option in chosen if group in options}


def _entry() -> dict[str, Any]:
    """Return the keys of the primary config that users set."""
    return {key: value for key, value in _read("", "train").items() if key not in ("defaults", "hydra")}


def _node(name: str, chosen: Mapping[str, str]) -> dict[str, Any]:
    """Return a node of the config: that of a group, or one of the primary config."""
    if name in chosen:
        return _option(name, chosen[name])
    node = _entry().get(name)
    if not isinstance(node, dict):
        raise _NeedsHydra
    return node


def _option(group: str, name: str) -> dict[str, Any]:
    """Return the keys of an option, with those of the options of its group that it extends."""
    content = _read(group, name)
    extended: list[Any] = content.pop("defaults", [])
    keys: dict[str, Any] = {}
    for base in extended if "_self_" in extended else [*extended, "_self_"]:
        if not isinstance(base, str):
            raise _NeedsHydra  # an option of another group
        keys |= content if base == "_self_" else _option(group, base)
    return keys


def _read(group: str, name: str) -> dict[str, Any]:
    """Return the content of a config file; `group` is "" for train.yaml."""
    path = option_path(group, name)
    if not path.is_file():
        raise _NeedsHydra  # not a file name, such as `mlp@modules.first`
    text = read_marked(path)
    if "@package" in text:
        raise _NeedsHydra  # its keys may lie elsewhere
    return yaml.safe_load(text) or {}
