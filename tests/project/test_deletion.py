"""Without the folders of extensions and their lines in pyproject.toml, the rest works, and nothing names them."""

import json
import os
import re
import sys
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from deletions import EXTENSIONS, tree_without
from marks import slow
from processes import printed
from repository import ROOT

POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]


def test_no_file_of_the_core_names_an_extension() -> None:
    places = (ROOT / "src", ROOT / "conf")
    files = [path for p in places for path in p.rglob("*.*") if path.is_file() and path.suffix != ".pyc"]
    core = [path for path in files if "extensions" not in path.relative_to(ROOT).parts]
    named = {path: re.findall(r"extensions[./](?!md)\w+", path.read_text()) for path in core}
    assert len(core) > 150
    assert {path: names for path, names in named.items() if names} == {}


def commands_of(name: str) -> set[str]:
    points = POINTS["hydrant.commands"].items()
    return {command for command, value in points if re.match(rf"hydrant\.extensions\.{name}\b", value)}


def options_of(name: str) -> set[tuple[str, str]]:
    folder = ROOT / "src" / "hydrant" / "extensions" / name / "conf"
    files = [path for path in folder.rglob("*.yaml") if path.parent != folder and path.name[0] != "_"]
    return {(path.parent.relative_to(folder).as_posix(), path.stem) for path in files}


def check_listings(listings: Mapping[str, Any], missing: Collection[str]) -> None:
    """Check that exactly the missing extensions' commands and options are not listed, and that no help names them."""
    commands, options = (
        {member for name in missing for member in of(name)} for of in (commands_of, options_of)
    )
    assert {*POINTS["hydrant.commands"]} - {*listings["commands"]} == commands
    listed = {(group, option) for group, names in listings["options"].items() for option in names}
    assert not listed & options
    named = re.findall(r"hydrant ([a-z]+)|([\w/]+)=(\w+)", listings["texts"])
    assert not {command for command, *_ in named} & commands
    assert not {(group, option) for _, group, option in named} & options


def tried(what: str, folder: Path, environment: Mapping[str, str]) -> Any:
    program = (sys.executable, ROOT / "tests/support/deletions.py", what)
    return json.loads(printed(*program, cwd=folder, env=environment))


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_each_extension_works_without_the_others_and_the_rest_without_it(workdir: Path) -> None:
    for name, listings in tried("each", workdir, {**os.environ, "PYTHONPATH": f"{ROOT}/src"}).items():
        check_listings(listings, [name])


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("missing", [EXTENSIONS, *slow(*([name] for name in EXTENSIONS))])
def test_a_tree_without_extensions_trains(missing: list[str], tmp_path: Path) -> None:
    environment = tree_without(missing, tmp_path / "tree")
    (work := tmp_path / "work").mkdir()
    check_listings(tried("core", work, environment), missing)


@pytest.mark.slow
def test_the_tests_of_the_core_pass_without_extensions(tmp_path: Path) -> None:
    environment = tree_without(EXTENSIONS, tree := tmp_path / "tree")
    words = ("-q", "-n", "2", "-m", "not slow and not extension", "tests", "src")
    printed(sys.executable, "-m", "pytest", *words, cwd=tree, env=environment)
