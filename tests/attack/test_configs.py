"""Any command line and any config file is either a config that runs or a one-line error: no traceback and no hang."""

import contextlib
import io
import json
import os
import shutil
import signal
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from attacks import Trials
from config_cases import COMMAND_LINES, CONFIG_FILES, TRAINED, ConfigCase, draw, write

from hydrant import cli
from hydrant.errors import HydrantError
from hydrant.runs.job import Job, RunResult
from hydrant.sweeps.grid import GridSweeper
from hydrant.training.prepare.build import prepare

CPU_SECONDS = 10.0
"""How long a case may take."""
WHOLE = {"command_lines": 1000, "config_files": 900, "trained": 100}
FEW = {"command_lines": 160, "config_files": 160, "trained": 20}
"""From these, the default tests choose: composing takes a fifth of a second."""
STRATEGIES = {"command_lines": COMMAND_LINES, "config_files": CONFIG_FILES, "trained": TRAINED}


class Hang(BaseException):
    """A case takes too long."""


@pytest.fixture(autouse=True)
def _limited_time() -> Iterator[None]:
    def hang(signum: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {CPU_SECONDS} s of CPU time")

    previous = signal.signal(signal.SIGPROF, hang)
    yield
    signal.signal(signal.SIGPROF, previous)


@pytest.fixture
def _preparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end before they open their folder: they are composed, checked and prepared."""

    def execute(job: Job) -> RunResult:
        try:
            prepare(job.config, is_preview=True)
        except HydrantError as error:
            return RunResult.from_error(error)
        return RunResult.finished()

    monkeypatch.setattr("hydrant.runs.execute.execute", execute)
    monkeypatch.setattr(GridSweeper, "_find_faults", lambda self, jobs: [])
    monkeypatch.setattr(GridSweeper, "_launch", lambda self, jobs: None)
    # The server would stay in the folder of its case, which is removed: there, Intel's MKL ends a process.
    monkeypatch.setattr("hydrant.sweeps.grid.start_server", lambda modules: None)


@pytest.mark.usefixtures("_preparing")
@pytest.mark.parametrize("kind", ["command_lines", "config_files"])
def test_odd_configs_end_in_one_line(kind: str, trials: Trials, workdir: Path) -> None:
    report([finding(case, workdir) for case in chosen(kind, trials)])


def test_configs_that_are_accepted_train(trials: Trials, workdir: Path) -> None:
    report([finding(case, workdir, may_fail=True) for case in chosen("trained", trials)])


def chosen(kind: str, trials: Trials) -> Iterator[ConfigCase]:
    counts = WHOLE if trials.share == 1 else FEW
    return trials.of(draw(STRATEGIES[kind], counts[kind]))


def report(findings: list[str]) -> None:
    found = [text for text in findings if text]
    assert not found, f"{len(found)} findings\n" + "\n".join(found)


def finding(case: ConfigCase, workdir: Path, may_fail: bool = False) -> str:
    """Run the command of a case in a folder of its own; return what is wrong with how it ends, "" if nothing is."""
    folder = workdir / "case"
    folder.mkdir()
    os.chdir(folder)
    try:
        write(case, folder)
        wrong = _run(case, folder, may_fail)
    finally:
        os.chdir(workdir)
        shutil.rmtree(folder)
    return f"{case}:\n{wrong}\n" if wrong else ""


def _run(case: ConfigCase, folder: Path, may_fail: bool) -> str:
    output, errors = io.StringIO(), io.StringIO()
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # that libraries emit for odd arguments
            status = cli.main(case.words)
    except (Exception, SystemExit, Hang):
        return traceback.format_exc(limit=-3)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if "Traceback" in output.getvalue() + errors.getvalue():
        return errors.getvalue()
    if status == 0:
        return ""
    return _wrong_refusal(status, errors.getvalue().splitlines(), folder, may_fail)


def _wrong_refusal(status: int, lines: list[str], folder: Path, may_fail: bool) -> str:
    lines = [line for line in lines if ", the experiment's " not in line]  # which another option replaces
    last = lines[-1] if lines else ""
    message = last.removeprefix("error: ")
    if status not in ((1, 2) if may_fail else (2,)):
        return f"exit status {status}: {lines}"
    if message == last or " " not in message or (status == 2 and len(lines) > 1):
        return f"not one line that says what is wrong: {lines}"
    summaries = [json.loads(file.read_text()) for file in folder.glob("outputs/**/summary.json")]
    if status == 1:
        return (
            ""
            if [summary["status"] for summary in summaries] == ["failed"]
            else f"{summaries} after a failure"
        )
    left = sorted(path.name for path in folder.iterdir() if path.name not in ("conf", "__pycache__"))
    return f"a refused command left {', '.join(left)}" if left else ""
