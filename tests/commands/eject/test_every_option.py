"""The file of every option is short, formatted, lint-clean and typed, and needs nothing of Hydrant."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from data_files import Published, published
from eject_files import write_files
from eject_options import NEEDS, WITHOUT

from hydrant.commands.eject.command import program
from hydrant.commands.eject.guide import refused_options
from hydrant.commands.eject.refusals import POSSIBLE
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.groups import group_options

__all__ = ["published"]

ROOT = Path(__file__).parents[3]
PUBLISHED = ("data/mnist", "data/cifar10", "data/cifar100")
SLOW = ("compile/blocks", "optimizer/kron", "data/image_folder")
SHOWN = (
    "default",
    "model/gpt",
    "optimizer/muon",
    "data/csv",
    "parallel/ddp",
)
"""Those that the default tests check; the slow ones check all."""
SEVERAL = ["precision=fp16", "averaging=ema", "scheduler=cyclic", *NEEDS.get("scheduler/cyclic", "").split()]
"""Options that the default tests check in one file."""


def every_option() -> list[str]:
    """Return all options that can be ejected, as `group/option`, after the default run."""
    options, refused = group_options(), refused_options()
    names = [f"{group}/{name}" for group in POSSIBLE for name in options[group] if name not in refused[group]]
    return ["default", *(name for name in names if name not in WITHOUT)]


def program_of(option: str) -> str:
    """Return the program of an option; the default has none."""
    group, _, name = option.partition("/")
    words = [f"{group}={name}", *NEEDS.get(option, "").split()] if name else []
    return program(check(compose(words)), words)


def ruff(command: str, text: str, *arguments: str) -> None:
    """Check a program with ruff and the settings of this repository."""
    words = [
        str(Path(sys.executable).with_name("ruff")),
        command,
        *arguments,
        "--config",
        str(ROOT / "pyproject.toml"),
    ]
    done = subprocess.run([*words, "-"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def check_text(option: str, text: str) -> None:
    """Check the length, the layout and the imports of a program."""
    num_lines = text.count("\n")
    assert num_lines <= (270 if option == "default" else 500), f"{option}: {num_lines} lines"
    ruff("check", text)
    ruff("format", text, "--check", "--config", "format.skip-magic-trailing-comma=true")
    imported = set(re.findall(r"^(?:from|import) (\w+)", text, flags=re.MULTILINE))
    needed = {"torch", "torchvision", "timm", "numpy", "sklearn", "pytorch_optimizer"}
    assert imported - sys.stdlib_module_names <= needed, option


def check_types(texts: dict[str, str], folder: Path) -> None:
    """Check the types of programs with pyright's standard rules."""
    for option, text in texts.items():
        (folder / f"{option.replace('/', '_')}.py").write_text(text)
    rules = {
        "typeCheckingMode": "standard",
        "reportMissingTypeStubs": False,
        "reportPrivateImportUsage": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(rules))
    pyright = str(Path(sys.executable).with_name("pyright"))
    command = [pyright, "--project", str(folder), "--pythonpath", sys.executable]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def files(workdir: Path) -> Path:
    """A folder with the data that options need, which is the working folder."""
    write_files(workdir)
    return workdir


def check_programs(options: Sequence[str], folder: Path) -> None:
    texts = {option: program_of(option) for option in options}
    for option, text in texts.items():
        check_text(option, text)
    check_types(texts, folder)


def test_some_programs_are_short_and_clean(files: Path) -> None:
    """Their types are those of the modules in `commands/eject/program`, which scripts/check checks."""
    for option in SHOWN:
        check_text(option, program_of(option))
    check_text("several", program(check(compose(SEVERAL)), SEVERAL))


@pytest.mark.slow
def test_the_programs_of_all_options_are_short_clean_and_typed(files: Path, tmp_path: Path) -> None:
    checked = tmp_path / "checked"
    checked.mkdir()
    check_programs([option for option in every_option() if option not in PUBLISHED], checked)


@pytest.mark.slow
def test_programs_of_published_images_are_clean(published: Published, tmp_path: Path, workdir: Path) -> None:
    checked = tmp_path / "checked"
    checked.mkdir()
    check_programs([f"data/{published.name}"], checked)
