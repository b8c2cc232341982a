"""The trials of a study on disk: drawn, recorded, and drawn alike after a kill."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from optuna import load_study
from searches import OBJECTIVE, PRUNERS, SAMPLERS, search_of, space_of
from tiny_runs import tiny_job

from hydrant.errors import ConfigError
from hydrant.extensions.optuna.trials import JOURNAL, PendingTrial, Search, Trials, open_storage
from hydrant.records import Objective, Trial


def value_of(trial: PendingTrial) -> float:
    return -((math.log10(trial.params.get("a", 0.1)) + 2) ** 2) - trial.params["c"] / 10


def run_study(
    folder: Path, search: Search, num_trials: int, killed_in: Sequence[int] = ()
) -> list[PendingTrial]:
    """Run a study to its end, killed between the start and the end of some trials; return each trial as it ran."""
    run: list[PendingTrial] = []
    trials = Trials(folder, search)
    killed = set(killed_in)
    while trials.num_finished < num_trials:
        trial = trials.ask()
        if trial.number in killed:
            killed.remove(trial.number)
            trials = Trials(folder, search)
            continue
        run.append(trial)
        trials.tell(trial.number, [value_of(trial)], is_pruned=False)
    return run


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "grid"])
def test_a_killed_study_draws_the_trials_of_one_that_was_not(sampler: str, tmp_path: Path) -> None:
    folders = [tmp_path / name / "study" for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir(parents=True)
    whole = run_study(folders[0], search_of(sampler), 15)
    killed = run_study(folders[1], search_of(sampler), 15, killed_in=(0, 7, 14))
    assert [(a.number, a.params) for a in killed] == [(a.number, a.params) for a in whole]
    assert [a.number for a in killed if a.has_begun] == [0, 7, 14]
    assert len({str(trial.params) for trial in whole}) == 15
    assert len({trial.params["b"] for trial in whole}) > 1


def test_of_two_combinations_five_trials_train_two(tmp_path: Path) -> None:
    """The others take the result of the ended one; that of a failed one, or of one that runs, nobody takes."""
    trials, trained = Trials(tmp_path, search_of("tpe", "a=choice(0.1,0.2)")), list[PendingTrial]()
    failed, running = trials.ask(), trials.ask()
    trials.tell(failed.number, None)
    for trial in (running, *(trials.ask() for _ in range(4))):
        if trials.take_known(trial) is None:
            trained.append(trial)
            trials.tell(trial.number, [float(trial.params["a"])])
    assert sorted(trial.params["a"] for trial in trained) == ["0.1", "0.2"]
    assert trials.num_finished == 5
    loaded = load_study(study_name=tmp_path.name, storage=open_storage(tmp_path)).trials
    assert all(t.values == [float(t.params["a"])] for t in loaded if t.number != failed.number)


def test_a_grid_draws_each_combination_once(tmp_path: Path) -> None:
    search = search_of("grid", "a=0.1,0.2", "c=range(1,4)")
    trials = Trials(tmp_path, search)
    drawn: list[PendingTrial] = []
    while not trials.is_exhausted:
        drawn.append(trials.ask())
        trials.tell(drawn[-1].number, None)  # a failed one is not drawn again
    assert sorted((trial.params["a"], trial.params["c"]) for trial in drawn) == [
        (a, c) for a in ("0.1", "0.2") for c in (1, 2, 3)
    ]


def test_an_incomplete_line_of_the_journal_is_removed(tmp_path: Path) -> None:
    whole = run_study(tmp_path, search_of("random"), 3)
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 4, "worker')
    assert run_study(tmp_path, search_of("random"), 5)[0].number == len(whole)
    assert Trials(tmp_path, search_of("random")).num_finished == 5


@pytest.mark.parametrize(
    ("search", "keys"),
    [
        (search_of("random", "a=interval(0,1)", "seed=1"), ["a"]),
        (search_of("tpe", "a=interval(0,2)", "seed=1"), ["hydra.sweeper.sampler._target_"]),
        (search_of("random", "a=interval(0,2)", "seed=2", "b=0,1"), ["seed", "b"]),
    ],
)
def test_another_search_in_the_same_folder_is_refused(
    search: Search, keys: Sequence[str], tmp_path: Path
) -> None:
    first = search_of("random", "a=interval(0,2)", "seed=1", "tracker=local")
    Trials(tmp_path, first)
    # The tracker changes no result.
    Trials(tmp_path, search_of("random", "a=interval(0,2)", "seed=1"))
    with pytest.raises(ConfigError) as refused:
        Trials(tmp_path, search)
    for key in keys:
        assert f"{key} (" in str(refused.value)


def test_the_best_trials_of_several_objectives_are_the_pareto_front(tmp_path: Path) -> None:
    objectives = [OBJECTIVE, Objective("num_parameters", "min")]
    search = Search(space_of("a=interval(0,1)"), objectives, SAMPLERS["random"], PRUNERS["none"])
    trials = Trials(tmp_path, search)
    for values in ((0.9, 100.0), (0.8, 50.0), (0.7, 80.0)):
        trials.tell(trials.ask().number, values)
    assert [trial.number for trial in trials.best()] == [0, 1]
    job = trials.job_of(PendingTrial(3, {}), tiny_job(tmp_path / "run"))
    assert (job.listener, job.trial) == (None, Trial(3, objectives))
