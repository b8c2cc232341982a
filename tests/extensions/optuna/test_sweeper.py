"""The Optuna sweeper: what it refuses before the first trial, and the lock of the study's folder."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from searches import TINY

from hydrant import cli
from hydrant.runs.lock import is_held, shared
from hydrant.sweeps.fork_server.call import CallResult


@pytest.mark.parametrize(
    ("words", "key", "reason"),
    [
        (["seed=0,1", "hydra.sweeper.n_trials=0"], "hydra.sweeper.n_trials", "1 or more"),
        (["seed=0,1", "hydra.sweeper.n_jobs=2"], "hydra.sweeper.n_jobs", "hydra/launcher=local"),
        (["seed=0,1", "hydra.sweeper.objectives=[{metric: val/loss}]"], "hydra.sweeper.objectives", "`mode`"),
        (["seed=0,1", "hydra.sweeper.objectives=[{metric: val/loss, mode: up}]"], "hydra.sweeper.objectives", "'up'"),
        (["optimizer.lr=interval(0,1)", "hydra/sweeper/sampler=grid"], "optimizer.lr", "can be listed"),
        (["seed=0,1", "hydra/sweeper/sampler=tpee"], "hydra/sweeper/sampler", "did you mean 'tpe'"),
        (["seed=0,1", "+hydra.sweeper.sampler.n_startups=1"], "hydra.sweeper.sampler.n_startups", "no argument"),
        (["seed=0,1", "hydra.sweeper.pruner._target_=optuna.samplers.RandomSampler"], "hydra.sweeper.pruner", "pruner"),
        (["seed=0,1", "hydra.sweeper.sampler._target_=optuna.samplers.os.system"], "hydra.sweeper.sampler", ""),
        (["seed=0,1", "eval_every=null"], "eval_every", "so no run has val/accuracy; give eval_every=1ep"),
        (["optimizer=choice(adamw,adamm)"], "optimizer", "did you mean"),
        (["optimizer.lr=choice(0.1,high)"], "optimizer.lr", "number"),
    ],
)  # fmt: skip
def test_a_study_that_cannot_run_is_refused(
    words: Sequence[str],
    key: str,
    reason: str,
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["hydrant"])
    assert cli.main(["train", "-m", "hydra/sweeper=optuna", *words]) == 2
    message = capfd.readouterr().err.splitlines()[-1].removeprefix("error: ")
    assert message.startswith(key)
    assert reason in message
    assert not any(workdir.glob("multirun/*/*/*"))


def test_a_study_locks_its_folder_before_it_reads_it(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["hydrant"])
    monkeypatch.setattr(
        "hydrant.sweeps.preflight.call_isolated",
        lambda function, arguments, *_, **__: CallResult(function(*arguments), None),
    )
    folder, was_held = workdir / "multirun" / "study", list[bool]()
    monkeypatch.setattr(
        "hydrant.extensions.optuna.trials.drop_torn_line", lambda path: was_held.append(is_held(path))
    )
    monkeypatch.setattr(
        "hydrant.extensions.optuna.sweeper.OptunaSweeper._search", lambda *_: was_held.append(is_held(folder))
    )
    words = ["train", "-m", "sweep=optuna", "name=study", *TINY]
    assert cli.main(words) == 0
    assert was_held == [True, True]
    assert not (folder / "multirun.yaml").exists(), "a sweep writes its plan first"
    with shared(folder):
        assert cli.main(words) == 2
    assert (
        f"error: name: another process is at work in {folder.relative_to(workdir)}" in capfd.readouterr().err
    )
    (folder / "0000_a" / ".hydra").mkdir(parents=True)
    (folder / "0000_a" / "summary.json").write_text(
        '{"status": "running", "num_updates": 0, "host": "node7"}'
    )
    assert cli.main(words) == 2
    assert "0000_a holds a run on node7" in capfd.readouterr().err
    assert len(was_held) == 2
