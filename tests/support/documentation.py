"""The commands and examples on the pages of the documentation."""

import re
import sys
from pathlib import Path

from repository import ROOT


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    lines = "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def outputs(page: str) -> dict[str, str]:
    """Return the output that a page shows of a command: a block of text after its block, with three lines between."""
    pattern = r"^```bash\n((?:(?!```).)*?)^```\n\n(?:[^\n`#|]+\n){0,3}\n?^```text\n(.*?)^```"
    found = re.findall(pattern, (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    return {block.replace("\\\n", " ").splitlines()[-1].strip(): shown for block, shown in found}


def missing_lines(shown: str, printed: str) -> list[str]:
    """Return the lines of a documented output that were not printed. Numbers, absolute paths and blanks may differ."""
    any_word = r"-?\d+(?:,\d{3})*(?:[.e+-]+\d+)*%?", r"/\S+"
    words = re.compile("|".join(f"(?<![\\w.])(?:{word})" for word in any_word))

    def pattern(line: str) -> str:
        parts = words.split(line.strip())
        wild = [next(w for w in any_word if re.fullmatch(w, word)) for word in words.findall(line.strip())]
        texts = [r"\s*".join(map(re.escape, re.split(r"\s+", part))) for part in parts]
        return "".join(text + number for text, number in zip(texts, [*wild, ""], strict=True))

    return [line for line in shown.splitlines() if line.strip() and not re.search(pattern(line), printed)]


def write_files(page: str, folder: Path) -> None:
    """Write the blocks of Python, YAML and TOML whose first line is a path to that path."""
    for path, block in files_of(page).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(block)


def files_of(page: str) -> dict[str, str]:
    """Return the files that a page shows, by their paths."""
    shown = [block for language in ("python", "yaml", "toml") for block in blocks(page, language)]
    return {path: block for block in shown if (path := path_of(block))}


def forget_modules(package: str) -> None:
    """Let Python import the modules of a project again, which is elsewhere in each test."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def path_of(block: str) -> str:
    """Return the path in the first line of a block, or after the `@package` line, if there is one."""
    match = re.match(r"(?:# @package \S+\n)?# (\S+\.(?:py|yaml|toml))\n", block)
    return match[1] if match else ""
