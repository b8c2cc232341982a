"""What makes two runs the same: which keys differ, the folder of a job, and where a run starts."""

from __future__ import annotations

import itertools
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hydrant.checkpoint import Weights
from hydrant.checkpoint.manifest import write_manifest
from hydrant.config import check, choices_of, compose, differences, flatten
from hydrant.config.compose import job_slug
from hydrant.errors import ConfigError
from hydrant.resume import starting_point


def test_flatten_and_differences() -> None:
    one = {"seed": 0, "optimizer": {"lr": 0.1, "betas": [0.9, 0.99]}, "schedules": {}, "name": "a"}
    assert flatten(one) == {
        "seed": 0, "optimizer.lr": 0.1, "optimizer.betas": [0.9, 0.99], "schedules": {}, "name": "a"
    }  # fmt: skip
    assert differences(one, one) == {}
    other = {
        "seed": 0,
        "optimizer": {"lr": 0.2, "momentum": 0},
        "schedules": {},
        "name": "b",
        "tracker": {"mode": 1},
    }
    assert differences(one, other) == {
        "optimizer.betas": ([0.9, 0.99], None),
        "optimizer.lr": (0.1, 0.2),
        "optimizer.momentum": (None, 0),
    }
    assert list(differences(one, other)) == sorted(differences(one, other))


@pytest.mark.parametrize(
    "key",
    [
        "name=b",
        "resume=null",
        "eval_batch_size=9",
        "keep_last=9",
        "keep_best=2",
        "keep_every=9",
        "save_async=false",
        "resume_strict=false",
        "tracker=wandb",
    ],
)
def test_what_does_not_change_the_result_is_no_difference(key: str) -> None:
    assert differences(check(compose(["tracker=local"])), check(compose(["tracker=local", key]))) == {}


@pytest.mark.parametrize(
    "key",
    ["seed=1", "optimizer=sgd", "duration=1", "global_batch_size=32", "best.mode=min", "init_from=x"],
)
def test_what_changes_the_result_is_a_difference(key: str) -> None:
    assert differences(check(compose([])), check(compose([key]))) != {}


def test_choices_are_of_our_own_groups() -> None:
    assert choices_of({"optimizer": "adamw", "hydra/launcher": "basic", "debug": None}) == {
        "debug": None,
        "optimizer": "adamw",
    }


def test_slugs_do_not_depend_on_the_order() -> None:
    overrides = ["optimizer=adamw", "optimizer.lr=1e-3", "seed=0"]
    assert len({job_slug(order) for order in itertools.permutations(overrides)}) == 1
    assert (
        job_slug(["name=study", *overrides])
        == job_slug(overrides)
        == "optimizer.lr-1e-3_optimizer-adamw_seed-0"
    )
    assert job_slug([]) == job_slug(["name=study"]) == "defaults"


def test_slugs_tell_of_what_decides_nothing_only_if_the_sweep_is_over_it() -> None:
    words = ["tracker=local", "+tracker.tags=[a]", "keep_last=2", "resume_strict=false", "seed=0"]
    assert job_slug(words) == "seed-0"
    assert job_slug(words, ["tracker", "keep_last"]) == "keep_last-2_seed-0_tracker-local"
    assert job_slug(["parallel.param_dtype=bfloat16"]) == "parallel.param_dtype-bfloat16"


def test_slugs_of_different_jobs_differ_and_are_folder_names() -> None:
    values = [
        "0.1",
        "-0.1",
        "1e-3",
        "1e+3",
        "a/b",
        "a:b",
        "a b",
        "[1,2]",
        "[12]",
        "{a:1}",
        "'x'",
        "x",
        "X" * 200,
        "X" * 201,
    ]
    jobs = [[f"model.name={value}", f"seed={seed}"] for value in values for seed in (0, 1)]
    jobs += [
        ["+scheduler@schedules.weight_decay=linear"],
        ["+scheduler@schedules.momentum=linear"],
        ["~model.dropout"],
        ["+data.api_key=first-secret"],
        ["+data.api_key=second-secret"],
    ]
    slugs = [job_slug(job) for job in jobs]
    assert len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"[\w.+-]{1,120}", slug) for slug in slugs)
    assert not any("secret" in slug for slug in slugs)


@pytest.fixture
def run(tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """A config, and a run folder of it with a checkpoint of update 2."""
    config = check(compose(["tracker=local", "name=run"]))
    folder = tmp_path / "run"
    checkpoint = folder / "checkpoints" / "update_00000002"
    checkpoint.mkdir(parents=True)
    write_manifest(checkpoint, {}, {})
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return config, folder


def test_where_a_run_starts(run: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    config, folder = run
    checkpoint, empty = folder / "checkpoints" / "update_00000002", tmp_path / "empty"

    fresh = starting_point(config, empty)
    assert (fresh.checkpoint, fresh.weights, fresh.is_finished) == (None, None, False)
    assert starting_point(config | {"resume": None}, empty) == fresh
    assert starting_point(config, folder).checkpoint == checkpoint
    assert starting_point(config | {"resume": str(folder)}, empty).checkpoint == checkpoint
    assert starting_point(config | {"init_from": str(folder)}, empty).weights == Weights(checkpoint)
    assert starting_point(config | {"init_from": str(folder)}, empty).checkpoint is None
    other = config | {"seed": 1, "resume_strict": False}
    for resume, where in (("auto", folder), (str(folder), empty)):
        start = starting_point(other | {"resume": resume}, where)
        assert (start.checkpoint, start.changed) == (checkpoint, {"seed": (0, 1)})
    # What the run's own folder holds comes before `resume`: the same command again continues.
    assert starting_point(config | {"resume": str(folder)}, folder).checkpoint == checkpoint

    for status, is_finished in {
        "running": False,
        "failed": False,
        "preempted": False,
        "finished": True,
    }.items():
        (folder / "summary.json").write_text(json.dumps({"status": status}))
        assert starting_point(config, folder).is_finished is is_finished
        assert not starting_point(other, folder).is_finished  # it may have to go on for longer


def test_where_a_run_does_not_start(run: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    config, folder = run
    wrong = [
        (config | {"resume": None}, folder),
        (config | {"init_from": str(folder)}, folder),
        (config | {"init_from": str(folder), "resume": str(folder)}, tmp_path / "empty"),
        (config | {"seed": 1}, folder),
        (config | {"seed": 1, "resume": str(folder)}, tmp_path / "empty"),
        (config | {"resume": str(tmp_path / "nowhere")}, tmp_path / "empty"),
        (config | {"init_from": str(tmp_path / "nowhere")}, tmp_path / "empty"),
    ]
    for given, where in wrong:
        with pytest.raises(ConfigError, match=r"resume|init_from"):
            starting_point(given, where)
    assert not (tmp_path / "empty").exists()


def test_a_config_error_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("seed", "needs a whole number")))
    assert (str(error), error.key, error.exit_status) == ("seed: needs a whole number", "seed", 2)
