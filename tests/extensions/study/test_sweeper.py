"""`hydrant study`: equal tuning, fresh seeds, a budget, the same answer after a kill, and what it refuses."""

import contextlib
import io
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from answers import check
from marks import slow
from studies import Killed, WrittenRuns
from sweeps import SHORT

from hydrant import cli
from hydrant.errors import RecordError
from hydrant.extensions.compare.sources import read_runs
from hydrant.extensions.study.records import StudyFile
from hydrant.extensions.study.report import read_earlier
from hydrant.extensions.study.sweeper import StudySweeper
from hydrant.extensions.study.trials import read_answer
from hydrant.installation import tell_listeners
from hydrant.runs.folder import RunFolder
from hydrant.runs.lock import exclusive
from hydrant.signals import Stopped
from hydrant.sweeps.executors.base import Executor, SweepJob
from hydrant.sweeps.grid import GridSweeper
from hydrant.sweeps.preflight import is_finished

Study = Callable[..., tuple[int, str]]

TUNED = ("optimizer=adamw,sgd", "--tune", "optimizer.lr", "--first-seed", "5")
SMALL = ("optimizer=adamw,sgd", "--tune", "optimizer.lr=1e-3,1e-2")  # 12 runs
TWINS = ("--contender", "name=a optimizer=adamw")
FOLDER = Path("multirun/best")


@pytest.fixture
def study(workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Study:
    """Run a study without training. Returns the exit status and the output."""

    def run(runs: WrittenRuns, *words: str) -> tuple[int, str]:
        status = run_study(monkeypatch, runs, *words)
        if status == 0:
            answer = read_answer(FOLDER)
            assert answer is not None
            assert answer.question == record()["question"]
            known = [record()["verdict"][key] for key in ("status", "sentence", "winner")]
            assert [answer.status, answer.sentence, answer.winner] == known, "computed from its runs alone"
        printed = capsys.readouterr()
        return status, printed.err if status else printed.out

    return run


COMPOSED = dict[tuple[str, ...], SweepJob]()


def compose_once(own: StudySweeper, words: Sequence[str], number: int) -> SweepJob:
    """Compose a job, or take it from an earlier test: composing takes most of the time of a study without training."""
    key = (f"{own._tune}", f"{own._contenders}", *words)
    if key not in COMPOSED:
        COMPOSED[key] = GridSweeper._compose(own, words, number)
    found, sweep_folder = COMPOSED[key], FOLDER.resolve()
    folder = sweep_folder / found.folder.name
    return replace(found, job=replace(found.job, folder=folder, sweep_folder=sweep_folder))


later = partial(pytest.param, marks=pytest.mark.slow)


def run_study(monkeypatch: pytest.MonkeyPatch, runs: WrittenRuns, *words: str) -> int:
    # Checking the jobs imports torch in another process.
    monkeypatch.setattr(StudySweeper, "_find_faults", lambda self, jobs: [])
    monkeypatch.setattr(Executor, "check", lambda self, configs: [None] * len(configs))
    monkeypatch.setattr("hydrant.sweeps.grid.start_server", lambda modules: None)
    monkeypatch.setattr(StudySweeper, "_compose", compose_once)
    monkeypatch.setattr(StudySweeper, "_run_batch", lambda self, *batch: runs.train(*batch))
    return cli.main(["study", "name=best", *SHORT, *words])


@dataclass
class Done:
    """A study that has ended, which tests copy."""

    root: Path
    runs: WrittenRuns
    output: str

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.root / FOLDER / "study.json").read_text())

    def copy(self) -> None:
        shutil.copytree(self.root / FOLDER, FOLDER)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    root, runs, output = tmp_path_factory.mktemp("study"), WrittenRuns(accuracy), io.StringIO()
    with pytest.MonkeyPatch.context() as monkeypatch, contextlib.redirect_stdout(output):
        monkeypatch.chdir(root)
        assert run_study(monkeypatch, runs, *TUNED) == 0
    return Done(root, runs, output.getvalue())


def accuracy(chosen: dict[str, str]) -> float:
    """Return the accuracy of a run: adamw is better by 0.1, and best at lr = 0.01; sgd at 0.3."""
    is_adamw, lr = chosen["optimizer"] == "adamw", float(chosen.get("optimizer.lr", 0.01))
    noise = np.random.default_rng([int(chosen["seed"]), int(is_adamw)]).normal(0, 0.003)
    far = 0.05 * (np.log10(lr) - np.log10(0.01 if is_adamw else 0.3)) ** 2
    return float((0.9 if is_adamw else 0.8) - far + noise)


def record() -> dict[str, Any]:
    return json.loads((FOLDER / "study.json").read_text())


def without_times(content: dict[str, Any]) -> dict[str, Any]:
    cost = {key: content["cost"][key] for key in ("runs", "updates")}
    return {**content, "cost": cost, "commands": content["commands"][1:-1]}  # the tests repeat overrides


@pytest.mark.figures
def test_each_contender_is_tuned_by_as_many_runs_then_tested_with_fresh_seeds(done: Done) -> None:
    found, tuning = done.record, done.record["tuning"]
    assert Counter(trial["contender"] for trial in tuning["trials"]) == {"adamw": 9, "sgd": 9}
    adamw, sgd = found["contenders"]
    assert adamw["best"]["optimizer.lr"] == "0.01"
    extended = adamw["extended"], sgd["extended"]
    assert extended == (["optimizer.lr"], []), "the first values of adamw end at 0.01"
    assert sgd["best"]["optimizer.lr"] == "0.316"
    seeds = Counter(int(job.config["seed"]) for job in done.runs.jobs)
    assert seeds == {5: 18, 6: 2, 7: 2, 8: 2, 9: 2}, "one seed tunes, the others test"
    verdict = found["verdict"]
    assert (verdict["status"], verdict["winner"], verdict["ended_by"]) == ("decided", "adamw", "decision")
    assert (found["version"], found["is_running"], found["cost"]["runs"]) == (1, False, 26)
    assert done.output.index("Tuning of optimizer.lr: 5 runs") < done.output.index(verdict["sentence"])
    rounds = [line for line in done.output.splitlines() if " runs have begun; " in line]
    assert [line.partition(".")[0].split(" of at most 58 runs have begun; the next round has ") for line in rounds] == [
        ["0", "10"], ["10", "4"], ["14", "4"], ["18", "8"]
    ]  # fmt: skip
    report = (done.root / FOLDER / "study.md").read_text()
    assert report.startswith(
        f"# Which of adamw and sgd has the highest val/accuracy?\n\n{verdict['sentence']}"
    )
    assert "| contender | tuned to | val/accuracy (higher is better) | interval (95 %) | std" in report
    assert "| paired difference (above 0: the first is better) | mean | interval (95 %) | seeds |" in report
    assert "](study.png)" in report
    tell_listeners("on_study_end", done.record, done.root / FOLDER / "study.png")
    assert (done.root / FOLDER / "study.png").stat().st_size > 1000
    assert "| adamw | 0.01 | **" in report, "the chosen setting"
    mean = np.mean(adamw["results"])
    assert (adamw["num_seeds"], adamw["mean"]) == (4, pytest.approx(mean))
    assert adamw["low"] < mean < adamw["high"]
    assert "optimizer.weight_decay, in which they differ too: adamw 0.01, sgd 0" in report
    assert "Another split: the same one chose the settings and judges them" in report
    for title in ("Protocol", "Results", "Tuning", "Cost", "Not tried", "Repeat it"):
        assert f"\n## {title}\n" in report
    assert found["commands"][-1].endswith("optimizer=adamw optimizer.lr=0.01")
    assert found["commands"][0].endswith("--tune optimizer.lr --first-seed 5"), "no flag that has its default"


def test_the_record_has_the_fields_of_its_schema(done: Done) -> None:
    schema = pytest.importorskip("hydrant.extensions.editor.json_schema").schema_of(StudyFile)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(done.record, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**done.record, "version": 2}, schema)


@pytest.mark.slow
def test_a_study_reads_each_run_once_before_and_once_after_it_trains(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Counter[Path]()

    def count(config: Any, run: RunFolder) -> bool:
        reads[run.path] += 1
        return is_finished(config, run)

    monkeypatch.setattr("hydrant.extensions.study.trials.is_finished", count)
    assert study(WrittenRuns(accuracy), *SMALL)[0] == 0
    assert set(reads.values()) <= {1, 2}


@pytest.mark.slow
def test_a_table_for_a_paper_has_the_contenders_of_the_record(done: Done, study: Study) -> None:
    """It is all that stdout has."""
    done.copy()
    status, text = study(WrittenRuns(accuracy), *TUNED, "--table", "csv")
    head, *rows = text.splitlines()
    assert status == 0
    assert head == "contender,tuned to,val/accuracy (higher is better),interval (95 %),std,seeds,state"
    caption = study(WrittenRuns(accuracy), *TUNED, "--table", "markdown")[1].splitlines()[0]
    assert all(said in caption for said in ("hold after each seed", done.record["verdict"]["sentence"]))
    for row, one in zip(rows, done.record["contenders"], strict=True):
        name, best, mean, ends, _, num, state = row.split(",")
        assert (name, best, int(num)) == (one["name"], f"optimizer.lr={one['best']['optimizer.lr']}", 4)
        known = [one[key] for key in ("mean", "low", "high")]
        assert [float(mean), *map(float, ends.split(" to "))] == pytest.approx(known, abs=6e-5)
        assert state.startswith(one["state"])


@pytest.mark.slow
def test_the_command_in_the_report_is_the_same_study(
    done: Done, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    done.copy()
    runs, command, told = WrittenRuns(accuracy), shlex.split(done.record["commands"][0]), list[Any]()
    monkeypatch.setattr("hydrant.sweeps.sweep.tell_listeners", lambda *words: told.append(words[-1]))
    assert command[:2] == ["hydrant", "study"]
    assert study(runs, *command[2:])[0] == 0
    assert (runs.jobs, told) == ([], ["max"]), "the picture of its sweep needs to know what is better"
    assert without_times(record()) == without_times(done.record)


def test_a_study_killed_at_any_moment_ends_with_the_same_answer(done: Done, study: Study) -> None:
    for num_runs in (13, 9):  # in the finer rounds, and in the test
        with pytest.raises(Killed):
            study(WrittenRuns(accuracy, dies_after=num_runs), *TUNED)
        assert (record()["is_running"], record()["verdict"]["status"]) == (False, "undecided")
    assert study(WrittenRuns(accuracy), *TUNED)[0] == 0
    assert without_times(record()) == without_times(done.record)
    assert record()["cost"]["num_starts"] == 3


@pytest.mark.slow
def test_the_command_in_the_answer_continues_with_the_budget_that_decides(study: Study) -> None:
    seen = list[tuple[bool, int, float]]()

    def noisy(chosen: dict[str, str]) -> float:
        found = record()
        seen.append((found["is_running"], found["cost"]["num_starts"], found["protocol"]["alpha"]))
        return accuracy(chosen) - (0.099 if chosen["optimizer"] == "adamw" else 0)

    status, line = study(WrittenRuns(noisy), *TUNED, "--budget", "22runs", "--json")
    assert (status, len(line) < 4000) == (0, True)
    small, answer = record(), check(line)
    assert "best" not in answer, "a run of the tuning"
    found = answer["result"]
    assert found["left"] == {"runs": 22 - small["cost"]["runs"]}
    assert found["num_samples"] == small["num_samples"] == {"val": 360}
    assert found["levels"] == {"contenders": 0.95, "leads": 0.95, "beaten": 0.95}
    assert found["beaten"] == []
    for row in found["contenders"]:
        values = found["tuning"]["results"][row["name"]]
        assert len(values) == 5
        assert [*values] == sorted(values, key=float)
        assert values[row["best"]["optimizer.lr"]] == max(values.values())
    assert found["continue"] == small["continue"]
    assert (small["verdict"]["status"], small["verdict"]["ended_by"]) == ("undecided", "budget")
    assert small["cost"]["runs"] <= 22
    assert "no further round fits into the budget of 22 runs" in small["verdict"]["sentence"]
    runs = WrittenRuns(noisy)
    assert study(runs, *shlex.split(small["continue"])[2:])[0] == 0
    large = record()
    assert large["cost"]["runs"] == small["cost"]["runs"] + len(runs.jobs) > 22
    assert large["tuning"] == small["tuning"], "no more tuning after the test was seen"
    num_seeds = {row["num_seeds"] for row in large["contenders"]}
    assert large["verdict"]["status"] == "decided" or num_seeds == {small["verdict"]["seeds_needed"]}
    assert set(seen) == {(True, 1, 0.05), (True, 2, 0.05)}, (
        "the record is there before the first run of each start"
    )


@pytest.mark.slow
def test_the_answer_tells_apart_what_the_table_does(study: Study) -> None:
    def energy(chosen: dict[str, str]) -> float:
        return 1234569 + (0.1 if chosen["optimizer"] == "adamw" else 0.0) + 0.001 * accuracy(chosen)

    words = ("optimizer=adamw,sgd", "--metric", "val/energy", "best.mode=max")
    status, line = study(WrittenRuns(energy, metric="val/energy"), *words, "--json")
    found, cost = check(line)["result"], record()["cost"]
    means = {row["name"]: row["mean"] for row in found["contenders"]}
    assert (status, sorted(means.values())) == (0, [1234569.0, 1234569.1]), means
    assert found["cost"] == pytest.approx({key: cost[key] for key in found["cost"]}, rel=1e-5), "one clock"


def test_a_study_that_a_signal_stops_answers_as_its_schema_says(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(chosen: dict[str, str]) -> float:
        raise Stopped(130)

    assert run_study(monkeypatch, WrittenRuns(stopped), *TUNED, "--json") == 130
    printed = capsys.readouterr()
    found = check(printed.out)["result"]
    assert "0 of at most 58 runs have begun; the next round has 10.\n" in printed.err, (
        "two seeds of 20, and 9 of tuning"
    )
    assert (found["verdict"]["status"], found["verdict"]["ended_by"]) == ("undecided", None)
    assert found["continue"] == found["repeat"]


def test_a_study_whose_start_uses_its_budget_says_how_to_continue(study: Study) -> None:
    status, text = study(runs := WrittenRuns(accuracy), *TUNED, "--budget", "0.000001s")
    assert (status, runs.jobs) == (0, [])
    assert "Undecided: no result; no further round fits into the budget of 1e-06 seconds" in text
    assert "To continue: hydrant study " in text


@pytest.mark.parametrize(("budget", "updates", "num_rounds"), [*slow((100, 80, 0)), (143, 112, 1)])
def test_a_budget_that_pays_for_no_decision_begins_no_test(
    budget: int, updates: int, num_rounds: int, study: Study
) -> None:
    """A run has 8 updates. What the first 10 runs leave pays for 4 of a finer round, but not for 8 of a test."""
    status, text = study(WrittenRuns(accuracy), *TUNED, "--budget", f"{budget}updates")
    assert (status, record()["cost"]["updates"], record()["tuning"]["num_rounds"]) == (0, updates, num_rounds)
    left = (budget - updates) // 8 // 2
    assert f"the budget pays for about {left} fresh seeds, and a decision needs 4, so none begins." in text
    assert ("smallest or the largest tried: 0.01 of adamw. Try further ones." in text) == (num_rounds == 0)
    assert [row["results"] for row in record()["contenders"]] == [[], []]
    assert record()["verdict"]["ended_by"] == "budget"
    assert record()["verdict"]["sentence"].endswith("; a decision needs 4 fresh seeds of each.")
    found, again = record(), WrittenRuns(accuracy)
    assert study(again, *TUNED, "--budget", f"{budget}updates")[0] == 0
    assert again.jobs == []
    assert without_times(record()) == without_times(found)
    assert study(again, *shlex.split(found["continue"])[2:])[0] == 0
    assert (record()["verdict"]["status"], record()["tuning"]["num_rounds"]) == ("decided", 2)


@pytest.mark.parametrize("budget", ["147updates", "200updates"])
def test_a_budget_in_updates_is_kept(budget: str, study: Study) -> None:
    """Of a test, or of a finer round and a test."""
    runs = WrittenRuns(accuracy)
    assert study(runs, *TUNED, "--budget", budget)[0] == 0
    assert runs.batches[:2] == [1, 8 if budget == "147updates" else 9], "all that take half of the budget"
    assert record()["cost"]["updates"] <= int(budget.removesuffix("updates"))
    assert record()["verdict"]["status"] == "decided"


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["20runs,10updates,0.001s,0.001cpu-s", "26runs,210updates"])
def test_a_smaller_budget_takes_no_verdict_back(budget: str, done: Done, study: Study) -> None:
    done.copy()
    runs = WrittenRuns(accuracy)
    assert study(runs, *TUNED, "--budget", budget)[0] == 0
    assert runs.jobs == []
    found = record()
    for key in ("verdict", "contenders", "comparisons", "tuning", "not_tried"):
        assert found[key] == done.record[key]


@pytest.mark.slow
def test_a_failed_run_that_no_budget_tries_again_takes_no_verdict_back(done: Done, study: Study) -> None:
    """It failed after the study, as if its disk was full, and was not the best one of its contender."""
    done.copy()
    first = next(trial for trial in done.record["tuning"]["trials"] if trial["contender"] == "sgd")
    failed = FOLDER / first["run"] / "summary.json"
    error = {"type": "OSError", "message": ""}
    failed.write_text(json.dumps({"status": "failed", "num_updates": 8, "error": error}))
    runs = WrittenRuns(accuracy)
    assert study(runs, *TUNED, "--budget", "10updates")[0] == 0
    assert runs.jobs == []
    assert record()["verdict"] == done.record["verdict"]
    assert study(runs, *TUNED)[0] == 0
    assert runs.jobs == [], "the tuning is frozen when the test has begun"


@pytest.mark.slow
def test_a_tuning_run_that_failed_is_tried_again_until_the_test_begins(done: Done, study: Study) -> None:
    for run in (done.root / FOLDER).iterdir():
        if run.is_dir() and "seed-5" in run.name:
            shutil.copytree(run, FOLDER / run.name)
    first = next(trial for trial in done.record["tuning"]["trials"] if trial["contender"] == "sgd")
    error = {"type": "OSError", "message": ""}
    (FOLDER / first["run"] / "summary.json").write_text(
        json.dumps({"status": "failed", "num_updates": 8, "error": error})
    )
    runs = WrittenRuns(accuracy)
    assert study(runs, *TUNED)[0] == 0
    assert runs.jobs[0].folder.name == first["run"]
    assert record()["verdict"] == done.record["verdict"]


@pytest.mark.slow
def test_tuning_goes_on_with_a_larger_budget_until_the_test_begins(done: Done, study: Study) -> None:
    assert study(WrittenRuns(accuracy), *TUNED, "--budget", "80updates")[0] == 0
    small = record()
    assert (small["cost"]["runs"], small["tuning"]["num_rounds"]) == (10, 0)
    reason = "0 of 2 further rounds, because the next one did not fit into the budget before the test."
    reason = f"More tuning: it had {reason}"
    assert reason in small["not_tried"]
    assert reason in (FOLDER / "study.md").read_text()
    assert study(WrittenRuns(accuracy), *TUNED)[0] == 0
    assert without_times(record()) == without_times(done.record)


@pytest.mark.slow
def test_wall_and_processor_time_end_a_study_and_count_over_its_starts(study: Study) -> None:
    def slow(chosen: dict[str, str]) -> float:
        time.sleep(0.02)
        return accuracy(chosen)

    assert study(WrittenRuns(slow), *SMALL, "--budget", "0.05s")[0] == 0
    first = record()["cost"]
    assert (record()["verdict"]["ended_by"], first["num_starts"]) == ("budget", 1)
    runs = WrittenRuns(slow)
    assert study(runs, *SMALL, "--budget", "0.05s")[0] == 0
    assert study(runs, *SMALL, "--budget", "0.000001cpu-s")[0] == 0
    assert runs.jobs == []
    assert record()["cost"] | {"as_of": 0} == first | {"as_of": 0}, "these starts trained nothing"
    assert study(runs, *SMALL)[0] == 0
    cost = record()["cost"]
    assert (cost["wall_seconds"] > first["wall_seconds"], cost["num_starts"]) == (True, 2)


@pytest.mark.slow
def test_averages_are_judged_beside_the_weights_of_contenders_without_them(study: Study) -> None:
    def of_average(chosen: dict[str, str]) -> float | None:
        return 0.8 + int(chosen["seed"]) / 100 if chosen["averaging"] == "ema" else None

    runs = WrittenRuns(lambda chosen: 0.7 + int(chosen["seed"]) / 99, others={"val_ema/accuracy": of_average})
    assert study(runs, "averaging=none,ema")[0] == 0
    assert (record()["protocol"]["metric"], record()["verdict"]["winner"]) == ("val_ema/accuracy", "ema")


def test_without_tuning_contenders_are_compared_at_once(study: Study) -> None:
    runs = WrittenRuns(accuracy)
    arms = ("--contender", "optimizer=adamw", "--contender", "optimizer=sgd optimizer.lr=1e-6")
    assert study(runs, *arms)[0] == 0
    assert [int(job.config["seed"]) for job in runs.jobs] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert record()["verdict"]["winner"] == "optimizer=adamw"
    assert record()["tuning"]["trials"] == []


@pytest.mark.slow
def test_another_name_of_a_contender_is_the_same_study(done: Done, study: Study) -> None:
    done.copy()
    runs = WrittenRuns(accuracy)
    named = (
        "--contender",
        "optimizer=sgd",
        "--contender",
        "name=mine optimizer=adamw",
    )  # and in another order
    assert study(runs, *named, *TUNED[1:])[0] == 0
    assert runs.jobs == []
    assert (record()["verdict"]["winner"], record()["cost"]["runs"]) == ("mine", 26)
    other = (*named[:-1], "name=mine optimizer=adam")
    status, text = study(runs, *other, *TUNED[1:])
    assert (status, runs.jobs) == (2, [])
    assert "contenders is {sgd: ['optimizer=sgd'], mine: ['optimizer=adamw']} in multirun" in text


@pytest.mark.slow
def test_a_study_in_a_file_is_the_same_study(study: Study) -> None:
    words = (
        "hydra.sweeper.tune=['optimizer.lr=1e-3,1e-2']",
        "optimizer=adamw,sgd",
        "--metric",
        "val/accuracy",
    )
    runs = WrittenRuns(accuracy)
    assert study(runs, "sweep=study", *words)[0] == 0
    found = record()
    assert found["protocol"]["budget"] == {"runs": 60}
    assert "sweep=study" in found["commands"][0]
    assert "adamw,muon,lion" not in found["commands"][0], "what the file has"
    assert (found["verdict"]["winner"], len(runs.jobs)) == ("adamw", 12)
    again = WrittenRuns(accuracy)
    assert study(again, *SMALL, "--budget", "60runs", "--metric", "val/accuracy")[0] == 0
    assert again.jobs == []
    assert without_times(record()) == without_times(found)


@pytest.mark.slow
def test_a_contender_that_always_fails_is_named_and_the_others_are_compared(study: Study) -> None:
    fails = lambda chosen: None if chosen["optimizer"] == "lion" else accuracy(chosen)  # noqa: E731
    runs = WrittenRuns(fails)
    assert study(runs, "optimizer=adamw,lion,sgd", "--tune", "optimizer.lr=1e-3,1e-2")[0] == 0
    verdict = record()["verdict"]
    assert verdict["winner"] == "adamw"
    assert verdict["sentence"].endswith("; lion has no result (of 2 runs of the tuning, 2 diverged).")
    again = WrittenRuns(fails)
    assert study(again, "optimizer=adamw,lion,sgd", "--tune", "optimizer.lr=1e-3,1e-2")[0] == 0
    assert again.jobs == [], "a run that diverges does so again"


def test_a_study_in_which_every_run_fails_fails(study: Study) -> None:
    status, text = study(WrittenRuns(lambda chosen: None), *SMALL)
    assert status == 1
    assert "a run failed" in text
    sentence = "Undecided: no result; no run of the tuning has a result; adamw has no result (of 2 runs"
    assert record()["verdict"]["sentence"].startswith(sentence)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda name, seed: name == "sgd", "; sgd diverged with each of its 4 fresh seeds."),
        (lambda name, seed: name == "sgd" and seed == 2, "; sgd diverged with fresh seed 2."),
        (
            lambda name, seed: True,
            "Undecided: no contender has results with fresh seeds; adamw diverged with each",
        ),
    ],
    ids=["all seeds of one", "one seed of one", "all"],
)
def test_a_contender_that_diverges_in_the_test_is_named(
    bad: Callable[[str, int], bool], words: str, study: Study
) -> None:
    def value(chosen: dict[str, str]) -> float | None:
        seed = int(chosen["seed"])
        return None if seed > 0 and bad(chosen["optimizer"], seed) else accuracy(chosen)

    assert study(WrittenRuns(value), *SMALL)[0] == 0
    verdict = record()["verdict"]
    assert words in verdict["sentence"]
    assert (verdict["status"], verdict["ended_by"]) == ("undecided", "failures")


@pytest.mark.slow
def test_contenders_have_the_names_that_they_are_given(study: Study) -> None:
    arms = (
        "--contender",
        "name=fast optimizer=adamw",
        "--contender",
        "optimizer=sgd optimizer.lr=1e-6 name=slow one",
    )
    status, text = study(WrittenRuns(accuracy), *arms)
    assert (status, "'one' has no value" in text) == (2, True)
    arms = (*arms[:3], "optimizer=sgd optimizer.lr=1e-6 'name=slow one'")
    assert study(WrittenRuns(accuracy), *arms)[0] == 0
    assert [row["name"] for row in record()["contenders"]] == ["fast", "slow one"]
    assert record()["verdict"]["winner"] == "fast"
    assert shlex.split(record()["commands"][0])[-3:] == [arms[1], "--contender", arms[3]]


@pytest.mark.slow
def test_the_interval_of_an_accuracy_ends_at_1_and_a_run_may_finish_without_it(study: Study) -> None:
    def value(chosen: dict[str, str]) -> float:
        return 0.999 - 0.004 * (int(chosen["seed"]) % 2) - 0.01 * (chosen["optimizer"] == "sgd")

    assert study(WrittenRuns(value), "optimizer=adamw,sgd", "--seeds", "4")[0] == 0
    assert {row["name"]: row["high"] for row in record()["contenders"]}["adamw"] == 1.0
    shutil.rmtree(FOLDER)
    other = WrittenRuns(value, metric="val/loss")
    assert study(other, "optimizer=adamw,sgd", "--seeds", "4", "--metric", "val/accuracy")[0] == 1
    why = "adamw finished without val/accuracy with each of its 4 fresh seeds"
    assert why in record()["verdict"]["sentence"]


@pytest.mark.slow
def test_another_metric_than_that_of_the_tuning_judges(study: Study) -> None:
    runs = WrittenRuns(accuracy, others={"test/error": lambda chosen: 1 - accuracy(chosen)})
    status, text = study(runs, *SMALL, "--judge", "test/error")
    assert (status, "lower test/error is better; give test/error:max or test/error:min" in text) == (2, True)
    words = (*SMALL, "--judge", "test/error:min")
    status, text = study(runs, *words)
    assert (status, runs.jobs) == (2, [])
    assert "test_at_end: is false, so no run has test/error; give test_at_end=true" in text
    assert study(runs, *words, "test_at_end=true")[0] == 0
    found = record()
    assert found["question"] == "Which of adamw and sgd has the lowest test/error?"
    assert found["verdict"]["winner"] == "adamw"
    assert found["contenders"][0]["mean"] == pytest.approx(0.1, abs=0.01)
    protocol = found["protocol"]
    shown = protocol["metric"], protocol["mode"], protocol["tuning_metric"]
    assert shown == ("test/error", "min", "val/accuracy")
    assert "Tuning of optimizer.lr by val/accuracy: " in protocol["sentences"][0]
    assert not any("the same one chose" in text for text in found["not_tried"])


@pytest.mark.slow  # it prepares runs in other processes
@pytest.mark.parametrize(("judge", "status"), [("test/top5_accuracy:max", 2), ("test/loss", 0)])
def test_a_judge_that_no_run_has_is_refused_before_the_first_run(
    judge: str,
    status: int,
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = WrittenRuns(accuracy, others={"test/loss": lambda chosen: 1 - accuracy(chosen)})
    monkeypatch.setattr(StudySweeper, "_run_batch", lambda self, *batch: runs.train(*batch))
    words = ("optimizer=adamw,sgd", "test_at_end=true", "data.test_ratio=0.1", "--judge", judge)
    assert cli.main(["study", "name=best", *SHORT, *words]) == status
    text = capsys.readouterr().err
    refusal = f"hydra.sweeper.judge: no run would have {judge[:-4]}: no evaluation gives 'val/top5_accuracy'"
    assert (refusal in text, runs.jobs == []) == (status == 2, status == 2), text


def test_the_metric_of_the_tuning_judges_by_its_own_mode(study: Study) -> None:
    words = ("--metric", "val/energy", "best.mode=max", "--judge", "val_ema/energy")
    runs = WrittenRuns(accuracy, others={"val/energy": accuracy, "val_ema/energy": accuracy})
    assert study(runs, *TWINS, "--contender", "name=b optimizer=sgd", *words)[0] == 0
    assert (record()["protocol"]["mode"], record()["verdict"]["winner"]) == ("max", "a")


def test_the_protocol_says_how_many_seeds_the_budget_pays_for(study: Study) -> None:
    def noisy(chosen: dict[str, str]) -> float:
        place = [int(chosen["seed"]), len(chosen["optimizer"])]
        return float(np.random.default_rng(place).normal(0.9, 0.01))

    assert study(WrittenRuns(noisy), *SMALL, "--budget", "14runs", "--min-difference", "1e-4")[0] == 0
    found = record()
    assert found["protocol"]["paid_seeds"] == 5, "14 runs less 4 of the tuning, for two contenders"
    sentences = " ".join(found["protocol"]["sentences"])
    assert "The budget pays for 5 of them." in sentences
    assert "With 5 seeds, 80 of 100 studies find a true difference of " in sentences
    assert "So they find one of 0.0001 if that standard deviation is " in sentences
    assert found["cost"]["runs"] == 14


def test_two_studies_at_once_are_refused(study: Study) -> None:
    FOLDER.mkdir(parents=True)
    code = "import sys, time; from hydrant.runs.lock import exclusive; from pathlib import Path\n"
    code += "with exclusive(Path(sys.argv[1])): print(1, flush=True); time.sleep(60)"
    line = [sys.executable, "-c", code, str(FOLDER)]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        runs = WrittenRuns(accuracy)
        status, _ = study(runs, *SMALL)
        other.kill()
    assert (status != 0, runs.jobs) == (True, [])
    with exclusive(FOLDER):
        pass


@pytest.mark.slow
def test_a_forged_record_forges_no_answer(done: Done, study: Study) -> None:
    done.copy()
    true = done.record
    forged = {**true, "verdict": {**true["verdict"], "winner": "sgd"}, "contenders": []}
    forged["tuning"] = {"num_rounds": 0, "is_finished": True, "trials": []}
    (FOLDER / "study.json").write_text(json.dumps(forged))
    assert study(WrittenRuns(accuracy), *TUNED)[0] == 0
    assert without_times(record()) == without_times(true)


FORGED = '{"version": 1, "is_running": false, "protocol": {"contenders": ["sgd"]}}'


@pytest.mark.parametrize(
    "damage", ["{", '{"version": 1}', '{"version": 1, "protocol": 3}', FORGED, "[]", "\0"]
)
def test_a_damaged_record_is_refused(damage: str, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(damage)
    with pytest.raises(RecordError, match=r"continues from its runs\. Then nothing checks its protocol"):
        read_earlier(tmp_path)


def test_a_study_with_a_damaged_record_does_not_start(study: Study) -> None:
    FOLDER.mkdir(parents=True)
    (FOLDER / "study.json").write_text("{")
    runs = WrittenRuns(accuracy)
    status, text = study(runs, *TUNED)
    assert (status, runs.jobs) == (1, [])
    assert "study.json is damaged" in text


@pytest.mark.parametrize(
    "words",
    [
        ("--alpha", "0.1"),
        ("duration=9",),
        *slow((("--min-difference", "1"),), (("--metric", "val/loss"),), (("--rounds", "1"),)),
    ],
)
def test_another_protocol_in_same_folder_is_refused(words: Sequence[str], done: Done, study: Study) -> None:
    FOLDER.mkdir(parents=True)
    shutil.copy(done.root / FOLDER / "study.json", FOLDER)
    status, text = study(WrittenRuns(accuracy), *TUNED, *words)
    assert status == 2
    assert "a study keeps its protocol, except for budget and seeds" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("optimizer=adamw",), "hydra.sweeper.contenders: needs two contenders or more, each with a name"),
        (("--contender", "name=a optimizer=sgd", "--contender", "name=b optimizer=sgd"), "a is the same config as"),
        (("--contender", "optimizer=sgd optimizer.lr=1,2", "--contender", "optimizer=adamw"), "give --contender for"),
        ((*TWINS, "--contender", "name=a optimizer=sgd"), "with a name of its own, not ['a'"),
        (("--contender", "name=sgd optimizer=adamw", "--contender", "optimizer=sgd"), "not ['sgd', 'sgd']"),
        later((*TUNED, "--judge", "val/energy"), "hydra.sweeper.judge: nothing says whether a higher or a lower"),
        ((*TUNED, "--seeds", "3"), "hydra.sweeper.seeds: 3 can decide nothing at an alpha of 0.05; give 4 or more"),
        later((*TUNED, "--alpha", "1e-300"), "hydra.sweeper.seeds: 20 can decide nothing at an alpha of 1e-300; give "),
        (("optimizer=sgd,adamw", "seed=3"), "seed: is given twice for the contender sgd; a study chooses the seeds"),
        (("optimizer=sgd,adamw", "seed=3,4"), "seed: is given twice for the contender optimizer=sgd seed=3"),
        (("--contender", "optimizer=sgd", "--contender", "optimizer=adamw", "optimizer=lion"), "is given twice for"),
        ((*TUNED, "optimizer.lr=1"), "optimizer.lr: is given twice for the contender adamw; a study"),
        ((*TUNED[:2], "optimizer.lr=1e-3,nan"), "optimizer.lr: needs two finite values or more, each once"),
        ((*TUNED[:2], "optimizer.lr=1e-3"), "optimizer.lr: needs two finite values or more, each once, not '1e-3'"),
        ((*TUNED[:2], "optimizer.momentun"), "optimizer.momentun: no such key"),
        ((*TUNED[:2], "lr"), "lr: no such key; write optimizer.lr=..."),
        ((*TUNED[:2], "lr=1e-3..1"), "lr: no such key; write optimizer.lr=1e-3..1"),
        ((*TUNED[:2], "lr=1e-3,1e-2"), "lr: no such key; write optimizer.lr=1e-3,1e-2"),
        later((*TUNED[:2], "optimizer.zzz=1e-3..1"), "optimizer.zzz: no such key"),
        ((*TUNED[:2], "seed=1,2"), "seed: cannot be tuned: it repeats a run, and its best value is luck"),
        later((*TUNED[:2], "name=a,b"), "name: cannot be tuned: it has no effect on results"),
        later((*TUNED[:2], "hydra.launcher.n_jobs=1,2"), "hydra.launcher.n_jobs: cannot be tuned: it has no effect"),
        ((*TUNED[:2], "global_batch_size=2..5"), "global_batch_size: takes whole numbers, of which 2..5 has no 5 at"),
        ((*TUNED[:2], "model.hidden"), "model.hidden: has the default [16], around which no range lies"),
        ((*TUNED, "--budget", "1run"), "hydra.sweeper.budget: 1 can decide nothing at an alpha of 0.05; give 18"),
        ((*TUNED, "--alpha", "2"), "hydra.sweeper.alpha: needs a number above 0 and below 1, not 2"),
        later((*TUNED, "--alpha", "nan"), "hydra.sweeper.alpha: needs a number above 0 and below 1, not nan"),
        later((*TUNED, "--seeds", "0"), "hydra.sweeper.seeds: needs a whole number of 1 or more, not 0"),
        ((*TUNED, "--first-seed", "-1"), "hydra.sweeper.first_seed: needs a whole number of 0 or more, not -1"),
        ((*TUNED, "--min-difference", "-1"), "hydra.sweeper.min_difference: needs a number above 0 or null, not -1"),
        ((*TUNED, "--metric", "val/energy"), "best.mode: nothing says whether a higher or a lower"),
        ((*TUNED, "eval_every=null"), "eval_every: is null, so no run has val/accuracy; give eval_every="),
        ((*TUNED, "--judge", "train/loss", "log_every=null"), "log_every: is null, so no run has train/loss"),
        ((*TUNED, "--seed", "3"), "hydrant study has no flag --seed"),
        (("task.label_smoothing=0,0.1", "--metric", "val/loss"),
         "best.metric: val/loss is another quantity with each task.label_smoothing, so it cannot say which is better"),
        later(("optimizer=adamw,sgd", "--tune", "task.label_smoothing=0,0.1", "--metric", "val/loss"),
              "best.metric: val/loss is another quantity with each task.label_smoothing"),
        (("optimizer=adamw,sgd", "--tune", "task.label_smoothing=0,0.1", "--judge", "val/loss"),
         "hydra.sweeper.judge: val/loss is another quantity with each task.label_smoothing, so it cannot say which is"),
    ],
)  # fmt: skip
def test_a_wrong_study_is_refused_before_it_starts(words: Sequence[str], message: str, study: Study) -> None:
    runs = WrittenRuns(accuracy)
    status, text = study(runs, *words)
    assert (status, runs.jobs) == (2, [])
    assert message in text
    assert not FOLDER.exists()


def num_starts(root: Path) -> int:
    file = root / FOLDER / "study.json"
    return json.loads(file.read_text())["cost"]["num_starts"] if file.exists() else 0


@pytest.mark.slow
def test_a_real_study_killed_at_30_moments_ends_with_the_same_answer(tmp_path: Path) -> None:
    """With real runs: SIGKILL or SIGINT at random moments, the same command each time, and compare reads the runs."""
    words = f"study optimizer=adamw,sgd,lion --tune optimizer.lr --budget 40runs name=best {' '.join(SHORT)}".split()
    code = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # background jobs ignore SIGINT
    line = [sys.executable, "-c", f"import signal; {code}; from hydrant.cli import run; run()", *words]
    (whole := tmp_path / "whole").mkdir()
    undisturbed = subprocess.Popen(line, cwd=whole, stdout=subprocess.DEVNULL)
    (killed := tmp_path / "killed").mkdir()
    generator, num_stopped = random.Random(0), 0
    for moment in range(30):
        process = subprocess.Popen(line, cwd=killed, start_new_session=True, stdout=subprocess.DEVNULL)
        while process.poll() is None and num_starts(killed) <= num_stopped:
            time.sleep(0.05)  # what a machine needs for this varies
        try:
            process.wait(generator.uniform(0, 5))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL if moment % 3 else signal.SIGINT)
            num_stopped += 1
            process.wait()
    subprocess.run(line, cwd=killed, check=True, stdout=subprocess.DEVNULL)
    assert undisturbed.wait() == 0
    expected, found = (json.loads((root / FOLDER / "study.json").read_text()) for root in (whole, killed))
    assert found["cost"]["num_starts"] >= num_stopped > 10  # equal if the last one had all runs to be trained
    assert without_times(found) == without_times(expected)
    runs = read_runs([str(killed / FOLDER)])
    assert len(runs) == found["cost"]["runs"]
    assert {run.state for run in runs} == {"finished"}
