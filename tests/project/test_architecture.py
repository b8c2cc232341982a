"""docs/architecture.md shows the packages, files and names that exist."""

from __future__ import annotations

import re
import tomllib

import pytest
from repository import ROOT

PACKAGE = ROOT / "src" / "hydrant"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
NAMED = sorted(
    set(re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", PAGE))
    | {(file, name) for name, file in re.findall(r"`(\w+)` \(`([\w/]+\.py)`\)", PAGE)}
    | {
        (file, name)
        for name, file in re.findall(r"^\| `(\w+)` \|.*\| `([\w/]+\.py)` \|$", PAGE, re.MULTILINE)
    }
)
"""(file, name) of all code that the page names: `file`, `file:name`, `name` (`file`), and rows from name to file."""
FOLDERS = sorted(set(re.findall(r"`((?:[a-z]\w*/)+)`", PAGE)))


def test_the_picture_is_the_import_contract() -> None:
    picture = re.search(r"```text\n(cli .*?)```", PAGE, flags=re.DOTALL)
    assert picture is not None
    drawn = [re.split(r" {2,}", line)[0] for line in picture[1].splitlines()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert drawn == project["tool"]["importlinter"]["contracts"][0]["layers"]


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda part: part)
def test_named_code_exists(file: str, name: str) -> None:
    path = PACKAGE / file if (PACKAGE / file).exists() else ROOT / file
    text = path.read_text()
    *owner, member = name.split(".") if name else [""]
    for part in [*owner, member]:
        assert not part or re.search(rf"^\s*(class|def) {part}\b|^{part} = ", text, re.MULTILINE), part


@pytest.mark.parametrize("folder", FOLDERS)
def test_named_folders_exist(folder: str) -> None:
    assert (PACKAGE / folder).is_dir() or (ROOT / folder).is_dir() or folder in (
        "checkpoints/", "pictures/", "texts/", "tables/", "profile/", "wandb/", "tensorboard/", "mlflow/", "trackio/",
    )  # fmt: skip
