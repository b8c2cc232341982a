"""Python files in the working folder under the names of the modules that Hydrant and its packages import.

No command runs one of them. In a trusted project, the user's own parts are found there nevertheless.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from attacks import Trials
from tiny_runs import TINY, tiny_job, train

from hydrant.commands.registry import commands
from hydrant.safety import trust

HYDRANT = Path(sys.executable).with_name("hydrant")
NAMES = sorted({*sys.stdlib_module_names, *filter(str.isidentifier, packages_distributions())} - {"__main__"})
PLANTED = (
    "import os, sys\nwith open(os.environ['RAN'], 'a') as file: print(__name__, file=file)\nsys.exit('ran')\n"
)
OWN = """from math import prod
from torch import nn
class Net(nn.Sequential):
    def __init__(self, input_shape: list[int], num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(prod(input_shape), num_classes))
"""

CONF = "_target_: mine.Net\ninput_shape: ${data.input_shape}\nnum_classes: ${data.num_classes}\n"
IMAGES = ("data=image_folder", "data.root=images", "data.input_shape=[3,4,4]", "data.num_workers=1")

READING = [
    ["--version"],
    ["--help"],
    ["status", "."],
    ["status", "run", "--json"],
    ["log", "."],
    ["compare", "."],
    ["compare", "run", "--html=page.html"],
    ["sync", "--dry-run", "."],
    ["stop", "run"],
    ["docs", "sweeps"],
    ["list"],
    ["backends"],
    ["explain", "optimizer=adamw"],
    ["schema", "--out=schemas"],
    ["trust", "--list"],
]
BUILDING = [
    ["preview", *TINY],
    ["train", *TINY, "name=single"],
    ["train", "-m", *TINY, "seed=0,1", "name=sweep"],
    ["train", *TINY[:1], *IMAGES, *TINY[6:], "name=workers"],
    ["evaluate", "run"],
    ["export", "run"],
    ["predict", "run", "val", "--out=predictions.csv"],
    ["train", "-sc", "query=bash"],
]
LONG = [
    ["bench", *TINY, "duration=13"],
    ["diagnose", *TINY, "duration=13"],
    ["train", *TINY, "parallel=ddp", "parallel.num_processes=2", "name=ranks"],
    ["study", "optimizer.lr=0.1,0.01", *TINY, "eval_every=1", "name=study", "--seeds=4"],
]
OTHERS = [["tokenize", "run/train.log", "--out=tokens"], ["init", "new_project"], ["trust"]]
CASES = [*READING, *BUILDING, *OTHERS, *LONG]


def some_long(trials: Trials) -> list[list[str]]:
    """Return the commands that take tens of seconds, if all cases are tried."""
    return LONG if trials.share == 1 else []


def plant(folder: Path) -> None:
    for name in NAMES:
        (folder / f"{name}.py").write_text(PLANTED)
    (folder / "hydra_plugins" / "planted").mkdir(parents=True)
    (folder / "hydra_plugins" / "planted" / "__init__.py").write_text(PLANTED)


def is_module(name: str) -> bool:
    """Return whether this Python has such a module: not winreg, nor a package without `__init__.py`, which it hides."""
    if name in sys.builtin_module_names:
        return True
    spec = PathFinder.find_spec(name)
    return spec is not None and spec.origin is not None


def call(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "RAN": str(folder.parent / "ran"),
        "COMP_LINE": "hydrant train optimizer=",
        "WANDB_MODE": "offline",
        "XDG_CONFIG_HOME": str(folder.parent / "config"),
    }
    command = [str(HYDRANT), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def ran(folder: Path) -> list[str]:
    file = folder.parent / "ran"
    return file.read_text().split() if file.exists() else []


@pytest.fixture
def folder(workdir: Path) -> Path:
    """A working folder with a run, and a planted file for each name."""
    from data_files import write_images

    folder = workdir / "folder"
    assert train(tiny_job(folder / "run")) == 0
    for split, num_images in (("train", 8), ("val", 2)):
        for name in ("cats", "dogs", "owls"):
            write_images(folder / "images" / split / name, num_images, seed=0)
    plant(folder)
    return folder


def test_no_command_is_left_out() -> None:
    assert {words[0] for words in CASES if not words[0].startswith("-")} == set(commands())


def test_no_command_runs_files_of_the_working_folder(trials: Trials, folder: Path) -> None:
    for words in trials.of([*READING, *BUILDING, *some_long(trials), *OTHERS], minimum=2):
        done = call(words, folder)
        assert ran(folder) == [], (words, done.stderr)
        assert "Traceback" not in done.stderr, (words, done.stderr)
        assert done.returncode in (0, 2), (words, done.stderr)


def test_trusting_a_folder_names_no_module_that_python_has(folder: Path) -> None:
    (folder / "mine.py").write_text(OWN)
    done = call(["trust"], folder)
    listed = done.stdout.partition("(")[2].rstrip(")\n").split(", ")
    assert "mine" in listed
    assert not {*listed} & sys.stdlib_module_names


@pytest.mark.slow
def test_own_parts_are_found_behind_everything_else(
    trials: Trials, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine.py").write_text(OWN)
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "model" / "own.yaml").write_text(CONF)
    training = [words for words in (*BUILDING, *some_long(trials)) if TINY[0] in words]
    cases = [[*(word for word in words if not word.startswith("model.")), "model=own"] for words in training]
    refused = call(cases[0], folder)
    assert "'mine.Net' is not allowed" in refused.stderr
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent / "config"))  # as in `call`
    trust.trust(folder, ["mine"])
    shutil.rmtree(folder / "hydra_plugins")  # in a trusted project, they are the user's
    for name in NAMES:
        if not is_module(name):
            (folder / f"{name}.py").unlink()
    for words in trials.of(cases):
        done = call(words, folder)
        assert done.returncode == 0, (words, done.stderr)
        assert ran(folder) == [], (words, done.stderr)
