"""`hydrant race`: pairs of runs until the verdict is clear, in a sweep that continues and that compare reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from marks import slow
from processes import wait_for
from sweeps import SHORT

from hydrant import cli
from hydrant.commands.compare.sources import read_runs
from hydrant.sweeps.race import sweeper

Race = Callable[..., tuple[int, str]]

ARMS = ("optimizer=adamw", "optimizer=sgd,optimizer.lr=1e-6")


class Trained:
    """Replaces training: writes the last accuracy of each run, and counts the pairs that are started."""

    def __init__(self, gap: float) -> None:
        self.gap, self.batches = gap, list[int]()

    def train(self, batch: Sequence[Any], number: int) -> None:
        self.batches.append(len(batch))
        for n, pair in enumerate(batch, number // 2):
            for job, value in zip(pair, (0.9 + self.gap, 0.9), strict=True):
                job.folder.mkdir(parents=True)
                wobble = 0.002 * (-1) ** n if value != 0.9 else 0.0
                row = {"num_updates": 8, "val/accuracy": value + wobble}
                (job.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")


@pytest.fixture
def race(workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Race:
    """Race without training. Returns the exit status and the output."""

    def run(
        trained: Trained, *words: str, arms: Sequence[str] = ARMS, num_seeds: str = "5"
    ) -> tuple[int, str]:
        # Checking the jobs imports torch in another process.
        monkeypatch.setattr(sweeper.RaceSweeper, "_find_faults", lambda self, jobs: [])
        monkeypatch.setattr(sweeper.RaceSweeper, "_train", lambda self, *batch: trained.train(*batch))
        status = cli.main(["race", *arms, "name=duel", *SHORT, "--max-seeds", num_seeds, *words])
        printed = capsys.readouterr()
        return status, printed.err if status else printed.out

    return run


def result() -> dict[str, Any]:
    return json.loads(Path("multirun/duel/race.json").read_text())


def folders(optimizer: str) -> list[Path]:
    return list(Path("multirun/duel").glob(f"*optimizer-{optimizer}_*"))


def test_it_stops_with_the_first_clear_pair(race: Race) -> None:
    trained = Trained(gap=0.1)
    assert race(trained, "--first-seed", "7")[0] == 0
    assert trained.batches == [1, 1, 1, 1]
    seeds = [
        {path.name.partition("_seed-")[2].partition("_")[0] for path in folders(setting)}
        for setting in ("adamw", "sgd")
    ]
    assert seeds == [{"7", "8", "9", "10"}] * 2
    record = result()
    assert (record["winner"], record["decided_at"], len(record["pairs"])) == ("a", 4, 4)
    assert record["settings"] == {"a": ["optimizer=adamw"], "b": ["optimizer=sgd", "optimizer.lr=1e-6"]}
    assert record["rule"] == {"metric": "val/accuracy", "mode": "max", "alpha": 0.05, "negligible": None}


def test_it_ends_when_the_budget_is_spent(race: Race) -> None:
    trained = Trained(gap=0.0)
    assert race(trained, "--seeds-at-once", "2", num_seeds="3")[0] == 0
    assert trained.batches == [2, 1]
    assert result()["winner"] is None
    assert len(result()["estimates"]) == 3


def test_no_pair_starts_after_the_time_is_spent(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained(gap=0.0)
    assert race(trained, "--max-seconds", "1e-9", num_seeds="1")[0] == 0
    assert trained.batches == []


@pytest.mark.parametrize(
    ("words", "arms", "message"),
    [
        ((), ("adamw", "optimizer=sgd"), "hydra.sweeper.a: 'adamw' is no override; write optimizer=sgd,"),
        ((), ("optimizer=sgd", "optimizer=sgd"), "hydra.sweeper.b: is the same setting as A"),
        (("seed=3",), ARMS, "seed: a race chooses the seeds itself"),
        (("optimizer=lion",), ARMS, "optimizer: is in A or B"),
        (("--alpha", "2"), ARMS, "hydra.sweeper.alpha: needs a probability between 0 and 1, not 2"),
        ((), ("optimizer=adamw", "model.dropout=0.1"), "hydra.sweeper.b: is the same config as A"),
        *slow(
            ((), ("seed=1", "optimizer=sgd"), "hydra.sweeper.a: 'seed=1' is not allowed"),
            (("scheduler=cosine,wsd",), ARMS, "scheduler: a race has one value of each key"),
            (("--first-seed", "-1"), ARMS, "hydra.sweeper.first_seed: needs 0 or more, not -1"),
            (("--max-seeds", "0"), ARMS, "hydra.sweeper.max_seeds: needs 1 or more, not 0"),
            (
                ("--negligible", "-1"),
                ARMS,
                "hydra.sweeper.negligible: needs a number above 0, or null, not -1",
            ),
            ((), ("optimizer.lr=x", "optimizer.lr=1"), "optimizer.lr"),
            ((), ("optimizer.lr=0.1,0.2", "optimizer.lr=1"), "optimizer.lr: 0.1,0.2 are several values"),
            (("--seeds", "3"), ARMS, "hydrant race has no flag --seeds"),
        ),
    ],
)
def test_a_wrong_race_is_refused_before_it_starts(
    words: Sequence[str], arms: Sequence[str], message: str, race: Race
) -> None:
    trained = Trained(gap=0.1)
    status, text = race(trained, *words, arms=arms, num_seeds="1")
    assert (status, trained.batches) == (2, [])
    assert message in text
    assert not Path("multirun/duel").exists()


def test_one_setting_is_no_race(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["race", "optimizer=adamw"]) == 2
    assert "give two settings" in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_race_is_interrupted_and_continues(tmp_path: Path) -> None:
    """With real runs: SIGINT in the middle, the same command again, and again when it is decided."""
    arms = ("optimizer=adamw,optimizer.lr=0.03", ARMS[1])
    words = ["race", *arms, "name=duel", *SHORT, "duration=40", "eval_every=40", "--max-seeds", "6"]
    code = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # background jobs ignore SIGINT
    line = [sys.executable, "-c", f"import signal; {code}; from hydrant.cli import run; run()", *words]
    folder = tmp_path / "multirun" / "duel"
    process = subprocess.Popen(line, cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL)
    wait_for(lambda: (folder / "race.json").exists(), process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 130
    before = json.loads((folder / "race.json").read_text())["pairs"]
    again = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    record = json.loads((folder / "race.json").read_text())
    assert record["pairs"][: len(before)] == before
    assert record["winner"] == "a"
    assert "winner: a (optimizer=adamw,optimizer.lr=0.03), after" in again.stdout
    runs = read_runs([str(folder)])
    assert len(runs) == 2 * len(record["pairs"])
    assert {run.state for run in runs} == {"finished"}
    finals = {
        (run.config["optimizer"], run.config["seed"]): run.series["val/accuracy"].values[-1] for run in runs
    }
    assert [[finals["adamw", n], finals["sgd", n]] for n in range(len(record["pairs"]))] == record["pairs"]
    last = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert last.returncode == 0
    assert json.loads((folder / "race.json").read_text()) == record
