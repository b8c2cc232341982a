"""The generated parts of docs/guides/eject.md: the default program, and the options that cannot be ejected."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from textwrap import fill
from typing import Any

import yaml

from hydrant.commands.eject.command import program
from hydrant.commands.eject.refusals import POSSIBLE, fixed_keys
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.groups import conf_dir

_FILE = Path("docs/guides/eject.md")
_WIDTH = 120


def refused_options() -> dict[str, list[str]]:
    """Return the options of each config group that cannot be ejected, because of their target."""
    return {
        group: [name for name in options_of(group) if _target(group, name) not in targets]
        for group, targets in POSSIBLE.items()
    }


def page(text: str) -> str:
    """Return the guide with its generated parts as they are now."""
    options = "\n".join(
        f"- `{group}`: {', '.join(names)}" for group, names in refused_options().items() if names
    )
    keys = ", ".join(f"`{key}`" for key in fixed_keys())
    options += "\n\n" + fill(f"These keys must have their default: {keys}.", _WIDTH)
    source = program(check(compose([])))
    for name, content in {"options": options, "program": f"```python\n{source}```"}.items():
        text = _replaced(text, f"<!-- {name}: generated -->", f"<!-- end of {name} -->", content)
    return text


def _replaced(text: str, begin: str, end: str, content: str) -> str:
    """Return the text with other content between two lines."""
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{content}\n{end}", text, flags=re.DOTALL)


def options_of(group: str) -> list[str]:
    """Return the names of the options of a config group."""
    files = sorted((Path(conf_dir()) / group).glob("*.yaml"))
    return [file.stem for file in files if not file.stem.startswith("_")]


def _target(group: str, name: str) -> str:
    """Return the `_target_` of an option, its own or that of the option it extends."""
    node: dict[str, Any] = yaml.safe_load(
        (Path(conf_dir()) / group / f"{name}.yaml").read_text(encoding="utf-8")
    )
    if "_target_" in node:
        return node["_target_"]
    bases = [base for base in node.get("defaults", []) if isinstance(base, str) and base != "_self_"]
    return _target(group, bases[0])


if __name__ == "__main__":
    _FILE.write_text(page(_FILE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
