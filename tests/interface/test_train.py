"""`hydrant.train` makes the run of the command, raises what went wrong, and leaves nothing behind in the process."""

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pytest
import torch
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.version import VersionBase, base_at_least
from process_states import process_state
from training_runs import interrupt_at

import hydrant
from hydrant.errors import Interrupted, NonFiniteError
from hydrant.runs.record import read_metrics

pytestmark = pytest.mark.usefixtures("workdir")

SMALL = ("tracker=local", "data=digits", "model.hidden=[8]", "limit_train_samples=128", "limit_val_samples=64",
         "global_batch_size=32", "duration=8", "log_every=2", "eval_every=4", "save_every=4")  # fmt: skip
"""Overrides of a run of eight updates."""


def small(*overrides: str) -> hydrant.Config:
    return hydrant.compose([*SMALL, *overrides])


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run without what depends on the time."""
    return [
        {key: value for key, value in row.items() if key != "time" and not key.startswith("perf/")}
        for row in read_metrics(folder)
    ]


def test_it_makes_the_run_of_command(train: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = hydrant.train(small("name=python"))
    assert run.status == "finished"
    assert run.folder == Path("outputs/python").resolve()
    assert rows(run.folder) == rows(train(*SMALL, name="command"))
    assert "already finished" not in capsys.readouterr().out
    assert hydrant.train(small(), folder="outputs/command").status == "finished"
    assert "already finished: outputs/command" in capsys.readouterr().out


def test_without_a_name_each_call_makes_a_run() -> None:
    config = small("duration=1")
    first, second = hydrant.train(config), hydrant.train(config)
    assert first.folder != second.folder
    assert rows(first.folder) == rows(second.folder)


def random_numbers() -> list[Any]:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]


def hydra_state() -> list[Any]:
    base_at_least("1.1")  # sets Hydra's default, as its parser does, if no version is set
    return [GlobalHydra.instance().hydra, VersionBase.instance().version_base]


@pytest.mark.parametrize(
    ("overrides", "error"),
    [(("deterministic=true",), None), (("optimizer=sgd", "optimizer.lr=1e30"), NonFiniteError)],
)
def test_it_leaves_nothing_behind(overrides: tuple[str, ...], error: type[Exception] | None) -> None:
    before = process_state(), random_numbers(), hydra_state()
    config = small(*overrides)
    if error is None:
        hydrant.train(config).evaluate()
    else:
        with pytest.raises(error):
            hydrant.train(config)
    assert (process_state(), random_numbers(), hydra_state()) == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_it_leaves_newer_settings_of_precision() -> None:
    """They contradict the older ones, which torch then refuses to read."""
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, conv.fp32_precision
    try:
        matmul.fp32_precision, conv.fp32_precision = "tf32", "ieee"
        hydrant.train(small("duration=1"))
        assert (matmul.fp32_precision, conv.fp32_precision) == ("tf32", "ieee")
    finally:
        matmul.fp32_precision, conv.fp32_precision = before


def test_it_leaves_determinism_that_only_warns() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        hydrant.train(small("duration=1"))
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_hydra_app_of_the_user_keeps_working(workdir: Path) -> None:
    (workdir / "app").mkdir()
    (workdir / "app" / "main.yaml").write_text("answer: 42\n")
    with hydra.initialize_config_dir(str(workdir / "app"), version_base="1.2"):
        before = hydra_state()
        hydrant.train(small("duration=1")).evaluate()
        assert hydra_state() == before
        assert hydra.compose("main").answer == 42


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["optimizer.lrr=1"], "optimizer.lrr", "did you mean 'lr'"),
        (["optimizer=sdg"], "optimizer", "did you mean 'sgd'"),
        (["seed=0,1"], "seed", "several values"),
        (["sweep=seeds"], "sweep", "makes several runs"),
        (["data.input_shape=[2]"], "data.input_shape", "but the data have"),
        ("seed=1", "overrides", "needs a list"),
        ([1], "overrides", "needs a list of strings"),
    ],
)
def test_a_wrong_config_is_an_error_with_its_key(
    workdir: Path, overrides: list[str], key: str, words: str
) -> None:
    with pytest.raises(hydrant.ConfigError, match=words) as caught:
        hydrant.train(hydrant.compose(overrides), folder=workdir / "new" / "run")
    assert caught.value.key == key
    assert list(workdir.iterdir()) == []


def test_a_config_cannot_be_changed() -> None:
    config = small("optimizer=sgd")
    with pytest.raises(TypeError):
        config["optimizer"]["lr"] = 1.0
    assert hydrant.compose([*config.overrides, "seed=1"])["seed"] == 1
    assert "lr: 0.1" in str(config)


def test_a_conf_folder_of_the_user(workdir: Path) -> None:
    (workdir / "mine" / "optimizer").mkdir(parents=True)
    (workdir / "mine" / "optimizer" / "sgd.yaml").write_text(
        "_target_: torch.optim.SGD\n_partial_: true\nlr: 0.5\n"
    )
    assert hydrant.compose(["optimizer=sgd"], conf="mine")["optimizer"]["lr"] == 0.5
    assert hydrant.compose(["optimizer=sgd"])["optimizer"]["lr"] == 0.1
    with pytest.raises(hydrant.ConfigError, match="conf: other is not a folder"):
        hydrant.compose(conf="other")


@pytest.mark.parametrize(
    ("signum", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Interrupted)]
)
def test_a_signal_saves_and_the_same_call_continues(
    monkeypatch: pytest.MonkeyPatch, signum: signal.Signals, error: type[BaseException]
) -> None:
    config = small()
    words = rf"stopped by {signum.name} after update 3; hydrant.train\(config, folder='run'\) continues it"
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3, signum=signum)
        with pytest.raises(error, match=words):
            hydrant.train(config, folder="run")
    run = hydrant.load_run("run")
    assert (run.status, run.summary["num_updates"]) == ("preempted", 3)
    assert hydrant.train(config, folder="run").status == "finished"
    settings = yaml.safe_load(Path("run/.hydra/hydra.yaml").read_text())
    assert settings["hydra"]["runtime"]["output_dir"] == str(Path("run").absolute())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*unclosed file")  # torch does not close the logs of its ranks
def test_ranks_train_the_config_and_report_their_errors() -> None:
    ranks = "parallel.num_processes=2"
    assert hydrant.train(small(ranks)).status == "finished"
    with pytest.raises(hydrant.ConfigError, match="33 is not divisible by 2 ranks"):
        hydrant.train(small(ranks, "global_batch_size=33"))
    with pytest.raises(NonFiniteError):
        hydrant.train(small(ranks, "optimizer=sgd", "optimizer.lr=1e30"))
