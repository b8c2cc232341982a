"""The SLURM launcher where SLURM is missing or an error ends the sweep: no job goes on, and no secret stays on disk."""

from contextlib import closing
from pathlib import Path

import pytest
from processes import is_alive
from quick_jobs import quick_units

from hydrant import cli
from hydrant.errors import ConfigError
from hydrant.extensions import slurm
from hydrant.extensions.slurm import Slurm

SUPPORT = str(Path(__file__).parents[2] / "support")


@pytest.fixture
def programs(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder where commands are found."""
    folder = workdir / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("PYTHONPATH", SUPPORT)
    return folder


def write_command(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def pickles(sweep: Path) -> list[Path]:
    """Return the files that hold the configs of jobs."""
    return [path for path in sweep.rglob("*.pkl") if not path.name.endswith("_result.pkl")]


@pytest.mark.slow
@pytest.mark.usefixtures("programs")
def test_jobs_on_this_machine_need_no_slurm(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_SQUEUE_SECONDS", 0)
    executor = Slurm(None, "local", 0)
    executor.prepare()
    ended = executor.run(quick_units(workdir / "study", 1, seconds=0), lambda: None)
    assert [one.results[0].exit_status for _, one in ended] == [0]
    assert pickles(workdir / "study") == []


@pytest.mark.usefixtures("programs")
def test_an_error_stops_the_jobs(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = workdir / "study"

    def stop_signal() -> None:
        if len(list(sweep.glob("*/pid"))) == 2:
            raise RuntimeError("anything")

    with (
        closing(Slurm(None, "local", 0).run(quick_units(sweep, 2, seconds=1000), stop_signal)) as ended,
        pytest.raises(RuntimeError, match="anything"),
    ):
        next(ended)
    assert "waiting for the end of its 2 submitted jobs" in capsys.readouterr().err
    assert not any(is_alive(int(file.read_text())) for file in sweep.glob("*/pid"))
    assert pickles(sweep) == []


def test_jobs_that_slurm_refuses_leave_no_secrets(
    programs: Path, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("sbatch", "squeue", "scancel", "srun"):
        write_command(programs, name, "echo 'invalid partition' >&2; exit 1")
    executor = Slurm(None, "slurm", 0)
    executor.prepare()
    for num_jobs in (1, 2):
        with pytest.raises(ConfigError, match=r"^hydra\.launcher: submitit: "):
            list(executor.run(quick_units(workdir / "study", num_jobs, seconds=0), lambda: None))
        assert pickles(workdir / "study") == []
    assert "waiting" not in capsys.readouterr().err


def test_all_commands_of_slurm_are_needed(programs: Path) -> None:
    write_command(programs, "sbatch", "")
    refusal = r"^hydra/launcher: slurm needs squeue, scancel, srun, which this machine"
    with pytest.raises(ConfigError, match=refusal):
        Slurm(None, "slurm", 0).prepare()


def test_another_cluster_is_refused(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "-m", "hydra/launcher=slurm", "hydra.launcher.cluster=lsf", "seed=0,1"]) == 2
    message = "error: hydra.launcher.cluster: unknown value 'lsf'. Options: local, slurm\n"
    assert capsys.readouterr().err == message
