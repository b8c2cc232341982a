"""The generated parts of docs/guides/eject.md: the default program, and the options that cannot be ejected."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import fill

from hydrant.commands.eject.command import program
from hydrant.commands.eject.refusals import POSSIBLE, fixed_keys
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.groups import group_options, included_options, option_content

_FILE = Path("docs/guides/eject.md")
_WIDTH = 120


def refused_options() -> dict[str, list[str]]:
    """Return the options of each config group that cannot be ejected, because of their target."""
    options = group_options()
    return {
        group: [name for name in options[group] if _target(group, name) not in targets]
        for group, targets in POSSIBLE.items()
    }


def page(text: str) -> str:
    """Return the guide with its generated parts as they are now."""
    refused = {group: ", ".join(names) for group, names in refused_options().items() if names}
    options = "\n".join(f"- `{group}`: {names}" for group, names in refused.items())
    keys = ", ".join(f"`{key}`" for key in fixed_keys())
    options += "\n\n" + fill(f"These keys must have their default: {keys}.", _WIDTH)
    source = program(check(compose([])))
    for name, content in {"options": options, "program": f"```python\n{source}```"}.items():
        begin, end = f"<!-- {name}: generated -->", f"<!-- end of {name} -->"
        before, after = text.partition(begin)[0], text.partition(end)[2]
        text = f"{before}{begin}\n{content}\n{end}{after}"
    return text


def _target(group: str, name: str) -> str:
    """Return the `_target_` of an option, its own or that of the option it extends."""
    content = option_content(group, name)
    return content["_target_"] if "_target_" in content else _target(group, included_options(content)[0])


if __name__ == "__main__":
    _FILE.write_text(page(_FILE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
