"""docs/architecture.md and CONTRIBUTING.md show the packages, files and names that exist."""

import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository import ROOT

PACKAGE = ROOT / "src" / "hydrant"
PAGE, RULES = (ROOT / "docs" / "architecture.md").read_text(), (ROOT / "CONTRIBUTING.md").read_text()
NAMED = sorted(
    set(re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", PAGE))
    | {(file, name) for name, file in re.findall(r"`(\w+)`\s\(`([\w/]+\.py)`\)", PAGE + RULES)}
    | {
        (file, name)
        for name, file in re.findall(r"^\| `(\w+)` \|.*\| `([\w/]+\.py)` \|$", PAGE, re.MULTILINE)
    }
)
"""(file, name) of all code that the page names: `file`, `file:name`, `name` (`file`), and rows from name to file."""
FOLDERS = sorted(set(re.findall(r"`((?:[a-z]\w*/)+)`", PAGE)))


def is_here(path: str) -> bool:
    """Whether a path is of the core, or of an extension that is not deleted."""
    extension = re.match(r"(?:tests/)?(extensions/\w+)/", path)
    return extension is None or (PACKAGE / extension[1]).is_dir()


def test_the_picture_is_the_import_contract() -> None:
    picture = re.search(r"```text\n(extensions\n.*?)```", PAGE, flags=re.DOTALL)
    assert picture is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert picture[1].splitlines() == project["tool"]["importlinter"]["contracts"][0]["layers"]


def places(name: str) -> Iterator[Path]:
    """Yield where a file or folder may be; a paragraph names those of its subject without the folder above them."""
    yield from (PACKAGE / name, ROOT / name, *PACKAGE.rglob(name), *(ROOT / "tests").rglob(name))


@pytest.mark.parametrize(
    ("file", "name"), [named for named in NAMED if is_here(named[0])], ids=lambda part: part
)
def test_named_code_exists(file: str, name: str) -> None:
    text = next(path for path in places(file) if path.is_file()).read_text()
    *owner, member = name.split(".") if name else [""]
    for part in [*owner, member]:
        assert not part or re.search(rf"^\s*(class|def) {part}\b|^{part} = ", text, re.MULTILINE), part


@pytest.mark.parametrize("folder", list(filter(is_here, FOLDERS)))
def test_named_folders_exist(folder: str) -> None:
    assert any(path.is_dir() for path in places(folder)) or folder in (
        "checkpoints/", "pictures/", "texts/", "tables/", "profile/", "wandb/", "tensorboard/", "mlflow/", "trackio/",
    )  # fmt: skip


def test_the_rooms_have_the_shown_sizes() -> None:
    """Within a tenth, and each of the core is shown, so that the table guides a reader."""
    sizes = runpy.run_path(str(ROOT / "scripts" / "size"))["rooms"](ROOT)
    rows = re.findall(r"^\| `(\w+)(?:/|(\.py))` \| ([\d,]+) \|", PAGE, re.MULTILINE)
    shown = {name + suffix: int(lines.replace(",", "")) for name, suffix, lines in rows}
    core = {room: lines for room, (lines, _) in sizes.items() if room != "extensions" and "__" not in room}
    assert shown == pytest.approx(core, rel=0.1)
