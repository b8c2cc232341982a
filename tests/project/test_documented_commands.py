"""Every command and example on a documentation page runs, in the order of the page, in one folder.

The environment has what the page installs: Hydrant with its requirements, and the extras that the page names.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
from documentation import commands, missing_lines, outputs
from installed import environment, extras_of, packages_of
from marks import slow_but
from repository import ROOT
from run_page import ELSEWHERE

ALL_PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(page.relative_to(ROOT).as_posix() for page in sorted((ROOT / "docs").rglob("*.md"))),
]
PAGES = [
    page
    for page in ALL_PAGES
    if re.search(r"^```(bash|python)$", (ROOT / page).read_text(), re.MULTILINE)
    and page != "docs/reference/extensions.md"  # test_extensions.py installs and runs its package
]

QUICK = ("README.md",)
"""The pages that the default tests run. The others take two minutes together, or a minute and more each."""


@pytest.mark.parametrize("page", slow_but(QUICK, PAGES))
def test_commands_run(page: str, tmp_path: Path) -> None:
    assert commands(page)
    (folder := tmp_path / "my_study").mkdir()
    bin_folder = environment(extras_of(page), packages_of(page))
    variables = {"WANDB_MODE": "offline", "XDG_CONFIG_HOME": str(tmp_path / "config")}
    for_tests = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    done = subprocess.run(
        [str(bin_folder / "python"), str(ROOT / "tests" / "support" / "run_page.py"), page],
        cwd=folder, env={k: v for k, v in os.environ.items() if k not in for_tests} | variables,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]


def test_the_environment_of_a_page_has_the_extras_that_it_names_and_no_others() -> None:
    assert extras_of("README.md") == []
    assert extras_of("docs/guides/python.md") == ["pandas"]
    assert extras_of("docs/guides/tracking.md") == ["mlflow", "trackio"]
    assert packages_of("docs/guides/optimizers.md") == ["schedulefree"]
    code = "import importlib.util as u; print([n for n in ('pandas', 'pytest', 'optuna', 'hydrant') if u.find_spec(n)])"
    command = [str(environment() / "python"), "-P", "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "['hydrant']\n"


def test_an_output_on_a_page_is_what_its_command_prints() -> None:
    """The commands of these pages are run by slow tests, which compare what they print."""
    shown = {page: list(outputs(page)) for page in PAGES if outputs(page)}
    assert shown["docs/tutorials/own-project.md"] == ["hydrant init ."]
    assert len(shown["docs/guides/profile.md"]) == len(shown["docs/guides/predict.md"]) == 1
    text = "trusted: /home/me/study (study)\n0,1,0.9894\n 3.0  30.1%  7  forward\n"
    assert missing_lines(text, "trusted: /tmp/x (study)\n12,7,0.5\n13 5% 20 forward\n") == []
    assert missing_lines(text, "trust: /tmp/x (study)\n12,7\n13 5% 20 backward\n") == text.splitlines()


def test_every_exception_is_on_a_page() -> None:
    assert {command for page in PAGES for command in commands(page)} >= ELSEWHERE
