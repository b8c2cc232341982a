"""`hydrant train`: its flags, and that it restores what it changed in a process that lives on, such as a notebook."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from process_states import process_state

from hydrant import cli
from hydrant.commands.train import parse_flags

RUN = ("train", "name=run", "tracker=local", "duration=2", "model.hidden=[8]")
REFUSED = (*RUN, "optimizer.lrr=1")
FAILED = (*RUN, "optimizer=sgd", "optimizer.lr=1e30", "duration=20", "log_every=1")
SWEEP = (*RUN, "--multirun", "seed=0,1")
RANKS = (*RUN, "parallel.num_processes=2")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        pytest.param(RUN, 0, id="run"),
        pytest.param(REFUSED, 2, id="refused"),
        pytest.param((*RUN, "hydra.job_logging.disable_existing_loggers=true"), 0, id="disabled_loggers"),
        pytest.param(FAILED, 1, id="failed"),
        pytest.param(SWEEP, 0, id="sweep"),
        pytest.param(("preview", "duration=2"), 0, id="preview"),
        pytest.param(("train", "--help"), 0, id="help"),
        # torch does not close the logs of its ranks
        pytest.param(
            RANKS,
            0,
            id="ranks",
            marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*unclosed file")],
        ),
    ],
)
@pytest.mark.usefixtures("workdir")
def test_a_command_restores_its_process(arguments: tuple[str, ...], status: int) -> None:
    before = process_state()
    assert cli.main(arguments) == status
    assert process_state() == before


def test_a_run_starts_with_the_arguments_of_the_call(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process may have its own, such as those of Jupyter."""
    monkeypatch.setattr("sys.argv", ["ipykernel_launcher.py", "-f", "kernel.json"])
    assert cli.main(RUN) == 0
    assert cli.main((*RUN, "resume=null")) == 2
    assert "holds a run; resume=auto continues it" in capsys.readouterr().err
    overrides = (workdir / "outputs" / "run" / ".hydra" / "overrides.yaml").read_text()
    assert "kernel.json" not in overrides


@pytest.mark.usefixtures("workdir")
def test_ctrl_c_while_a_run_starts_speaks_of_no_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hydrant.commands.train._job", interrupted)
    assert cli.main(RUN) == 130
    assert capsys.readouterr().err == "stopped by SIGINT before anything was started\n"


@pytest.mark.parametrize(
    ("words", "flags", "overrides"),
    [
        (["seed=1", "--multirun", "optimizer=sgd,adam"], ["multirun"], ["seed=1", "optimizer=sgd,adam"]),
        (["--", "seed=1"], [], ["seed=1"]),
        (["-m", "--", "seed=1"], ["multirun"], ["seed=1"]),
        (["seed=1", "--cfg", "job", "--resolve", "~optimizer.lr"], ["cfg", "resolve"], ["seed=1", "~optimizer.lr"]),
        (["seed=1", "--info", "seed=2"], ["info"], ["seed=1", "seed=2"]),
        ([], [], []),
    ],
    ids=str,
)  # fmt: skip
def test_flags_and_overrides_come_in_any_order(
    words: Sequence[str], flags: list[str], overrides: list[str]
) -> None:
    parsed = vars(parse_flags(words))
    assert parsed.pop("overrides") == overrides
    assert {name for name, value in parsed.items() if value} == set(flags)
