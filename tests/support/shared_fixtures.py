"""Fixtures of several folders: a trained run, the cases of an attack, a browser for the pages, SLURM."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from attacks import Trials
from processes import Forked
from slurm import run_slurm
from sweeps import FOUR_UPDATES
from training_runs import run_command

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(
    params=[pytest.param(0.01, id="hundredth"), pytest.param(1.0, id="whole", marks=pytest.mark.slow)]
)
def trials(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Iterator[Trials]:
    """The cases to try of an attack: a hundredth in the default tests, all in the slow ones.

    `scripts/attack` reads their number from the test report.
    """
    trials = Trials(request.param)
    yield trials
    record_property("trials", trials.num_tried)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes of Python that a test starts be forks of its process, in which they start others so."""
    monkeypatch.setattr(subprocess, "Popen", Forked)


@pytest.fixture
def trained(train_once: Callable[..., Path]) -> Path:
    """The folder of a convolutional network after 12 updates, with the checkpoints of updates 6 and 12."""
    words = "tracker=local duration=12 log_every=1 eval_every=6 save_every=6 keep_last=5 model=convnet"
    return train_once(*words.split(), "model.widths=[8,16]")


@pytest.fixture(scope="module")  # not for longer: this thread has a running event loop meanwhile
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright  # not everywhere where other tests of commands run

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium: apt install chromium")
    with sync_playwright() as playwright:
        # The sandbox cannot start as root, as in a container. The page is trusted.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """SLURM runs while the tests of a module run."""
    yield from run_slurm(tmp_path_factory.mktemp("slurm"))


@pytest.fixture(scope="session")
def single_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four updates, with one rank and without a launcher."""
    folder = tmp_path_factory.mktemp("single")
    done = run_command("name=single", "tracker=local", *FOUR_UPDATES, "optimizer.lr=0.1", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "outputs" / "single"
