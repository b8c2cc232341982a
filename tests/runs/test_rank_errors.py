"""An error or a death of one rank ends all ranks, and the run reports that rank's error. Real processes."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from faulty_model import MODULE, TORCHRUN, TWO_RANKS, fault, provide_faulty_model
from processes import wait_for
from repository import ROOT
from run_folders import rows, saved_updates, summary
from training_runs import command, run_command

from hydrant import cli

pytestmark = pytest.mark.usefixtures("without_gpu")  # more ranks than GPUs


@pytest.fixture
def words(workdir: Path) -> tuple[str, ...]:
    return provide_faulty_model(workdir)


@pytest.mark.slow
def test_nan_on_one_rank_ends_all_and_nothing_is_saved(words: tuple[str, ...], workdir: Path) -> None:
    done = run_command(*words, *TWO_RANKS, *fault("poison", 1), "log_every=1", cwd=workdir)
    folder = workdir / "outputs" / "run"
    assert done.returncode == 1
    message = "train/loss became NaN or infinite between updates 4 and 5 on rank 1. Lower "
    assert summary(folder)["error"]["message"].startswith(message)
    assert summary(folder)["error"]["type"] == "NonFiniteError"
    assert len(done.stderr.splitlines()) == 1  # of all ranks and the launching process together
    assert message in done.stderr
    assert saved_updates(folder / "checkpoints") == [2, 4]


@pytest.mark.slow
def test_nan_on_one_rank_is_skipped_by_all(words: tuple[str, ...], workdir: Path) -> None:
    """With a loss scaler, the other ranks would otherwise try the update again."""
    settings = ("skip_non_finite=true", "precision=fp16")
    done = run_command(*words, *TWO_RANKS, *fault("poison", 1), *settings, cwd=workdir)
    assert done.returncode == 0, done.stderr
    assert rows(workdir / "outputs" / "run")[-1]["optim/num_skipped"] == 1


def assert_reports_rank_1(folder: Path, stderr: str) -> None:
    """The error of rank 1 is in the last line, in the summary and, with its traceback, in the log."""
    line_start = "error: rank 1: ValueError: boom (at faulty.py:"
    assert any(line.startswith(line_start) for line in stderr.splitlines())
    assert summary(folder)["error"] == {"type": "ValueError", "message": "rank 1: boom"}
    assert "rank 1: the run failed\nTraceback" in (folder / "train.log").read_text()
    assert "ValueError: boom\n" in (folder / "train.log").read_text()


@pytest.mark.usefixtures("forks")
def test_an_error_on_one_rank_fails_the_run_without_a_restart(
    words: tuple[str, ...], workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also if destroying a process group takes all ranks, as on NCCL (`destroy_with_all_ranks`)."""
    assert cli.main(["train", *words, *TWO_RANKS, *fault("raise", 1), "parallel.max_restarts=2"]) == 1
    stderr = capfd.readouterr().err
    assert len(stderr.splitlines()) == 1
    assert_reports_rank_1(workdir / "outputs" / "run", stderr)


def fail_under_torchrun(words: tuple[str, ...], workdir: Path) -> str:
    """Run on two ranks of torchrun; return stderr, with torchrun's own report."""
    done = subprocess.run(
        [*TORCHRUN, str(ROOT / "train.py"), *words],
        cwd=workdir, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr


@pytest.mark.slow
def test_an_error_on_one_rank_of_torchrun_fails_the_run(words: tuple[str, ...], workdir: Path) -> None:
    stderr = fail_under_torchrun((*words, *fault("raise", 1)), workdir)
    assert_reports_rank_1(workdir / "outputs" / "run", stderr)
    assert "traceback : ValueError: boom (at faulty.py:" in stderr.partition("Root Cause")[2]


@pytest.mark.slow
def test_a_rank_of_torchrun_that_dies_is_the_error_of_others(words: tuple[str, ...], workdir: Path) -> None:
    stderr = fail_under_torchrun((*words, *fault("exit", 1)), workdir)
    assert "error: another rank has ended; the launcher, or " in stderr
    assert "gloo" not in stderr
    error = summary(workdir / "outputs" / "run")["error"]
    assert (error["type"], error["message"][:22]) == ("RankDied", "another rank has ended")


@pytest.mark.slow
def test_torchrun_s_rank_0_reports_model_that_cannot_be_built(words: tuple[str, ...], workdir: Path) -> None:
    """The other rank ends sooner, and torchrun sends SIGTERM to rank 0."""
    stderr = fail_under_torchrun((*words, *fault("refuse", 1)), workdir)
    assert "error: model: faulty.Net refuses it: boom" in stderr.splitlines()


@pytest.mark.slow
def test_torchrun_s_rank_0_reports_a_wrong_config(words: tuple[str, ...], workdir: Path) -> None:
    """Only rank 0 composes the config and imports the module of the model."""
    (workdir / "faulty.py").write_text(f"{MODULE}\ndist.destroy_process_group = destroy_last\n")
    stderr = fail_under_torchrun((*words, *fault("none", 1), "+model.nothing=1"), workdir)
    assert (workdir / "leaving").exists()
    assert any(line.startswith("error: model.nothing: ") for line in stderr.splitlines())


@pytest.mark.slow
def test_a_rank_that_dies_is_restarted_even_with_resume_null(words: tuple[str, ...], workdir: Path) -> None:
    settings = ("resume=null", "parallel.max_restarts=1")
    done = run_command(*words, *TWO_RANKS, *fault("exit", 1), *settings, cwd=workdir)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "restart 1 of 1: error: rank 1 ended with exit status 3"
    assert "continuing from" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("sleep", "stopped by SIGINT without saving; the same command continues from update_00000004"),
        ("stop", "stopped by SIGINT while a rank did not respond; the same command continues it"),
    ],
)
def test_a_second_ctrl_c_stops_all_ranks_at_once_without_saving(
    kind: str, message: str, words: tuple[str, ...], workdir: Path
) -> None:
    """Also if a rank is a stopped process, for which the other one waits in C code."""
    arguments = command(*words, *TWO_RANKS, *fault(kind, 1))
    process = subprocess.Popen(arguments, cwd=workdir, stderr=subprocess.PIPE, text=True)
    wait_for((workdir / "done").exists, process)
    for _ in range(2):
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=150)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == message
    assert summary(workdir / "outputs" / "run")["status"] == "preempted"
