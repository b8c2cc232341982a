"""Hydra imports and calls nothing that a config file's `hydra` node names, unless it is allowed or trusted."""

from collections.abc import Callable
from pathlib import Path

import pytest
from marks import of_extension, slow
from training_runs import Train

Refused = Callable[..., str]
TARGET = "{_target_: torch.utils.collect_env.run, command: touch called}"
OS = "os.system, command: touch called"


@pytest.mark.parametrize(
    ("experiment", "key"),
    [
        (f"hydra:\n  callbacks:\n    x: {TARGET}", "hydra.callbacks"),
        (f"schedules:\n  x: {TARGET}\nhydra:\n  callbacks:\n    x: ${{schedules.x}}", "hydra.callbacks"),
        (f"hydra:\n  sweeper: {{sampler: {{_target_: optuna.logging.{OS}}}}}", "hydra.sweeper"),
        (
            "hydra:\n  job_logging: {handlers: {file: {class: logging.FileHandler, filename: own.py}}}",
            "hydra.job_logging.handlers.file.filename",
        ),
        (
            "hydra:\n  job_logging:\n    version: 1\n    root: {handlers: [x]}\n    handlers:\n"
            "      x: {(): torch.utils.collect_env.run, command: touch called}",
            "hydra.job_logging.handlers.x.()",
        ),
        ("hydra:\n  job: {env_set: {LD_PRELOAD: ./their.so}}", "hydra.job.env_set.LD_PRELOAD"),
        (
            "hydra:\n  runtime: {choices: {evil: {h: {(): subprocess.Popen, args: [touch, called]}}}}\n"
            "  job_logging: {handlers: '${hydra:runtime.choices.evil}'}",
            "hydra.job_logging.handlers",
        ),
        ("x: {A: b}\nhydra:\n  job: {env_set: '${x}'}", "hydra.job.env_set: needs a mapping"),
        (
            "hydra:\n  callbacks: {x: {_target_: hydra.experimental.callbacks.PickleJobInfoCallback}}",
            "hydra.callbacks",
        ),
        *slow(
            ("hydra:\n  callbacks: ${model}", "hydra.callbacks"),
            (f"hydra:\n  callbacks: {{x: {{_target_: hydra.experimental.callbacks.{OS}}}}}",
             "hydra.callbacks"),
            ("hydra:\n  sweeper: {storage: {_target_: optuna.storages.RedisStorage}}", "hydra.sweeper"),
            ("hydra:\n  job: {name: ../own}", "hydra.job.name"),
            (
                f"hydra:\n  hydra_logging: {{handlers: {{x: {{class: logging.{OS}}}}}}}",
                "hydra.hydra_logging.handlers.x.class",
            ),
            (f"hydra:\n  sweeper:\n    sampler: {TARGET}", "hydra.sweeper"),
            ("hydra:\n  hydra_logging: {version: 1, root: {}, x: 'ext://my_module.x'}", "hydra.hydra_logging.x"),
            ("hydra:\n  hydra_logging: {handlers: {x: {class: my.Handler}}}", "hydra.hydra_logging.handlers.x.class"),
            ("hydra:\n  output_subdir: ../secrets", "hydra.output_subdir"),
            (
          f"hydra:\n  runtime: {{choices: {{evil: {TARGET}}}}}\n"
          "  sweeper: {sampler: '${hydra:runtime.choices.evil}'}",
          "hydra.sweeper",
      ),
            (
                "x: 'xt://my_module.x'\nhydra:\n"
                "  job_logging: {handlers: {x: {class: logging.StreamHandler, stream: 'e${x}'}}}",
                "hydra.job_logging.handlers.x.stream",
            ),
            ("hydra:\n  output_subdir: ${name}", "hydra.output_subdir"),
            ("hydra: {callbacks: {x: {verbose: true}}}", "hydra.callbacks: Hydra's callbacks are not called; "),
            ("defaults:\n  - override /hydra/sweeper: basic", "hydra.sweeper._target_"),
            ("hydra: {sweeper: {_target_: hydra_plugins.hydra_ax_sweeper.ax_sweeper.AxSweeper}}", "hydra/sweeper: "),
        ),
    ],
)  # fmt: skip
def test_hydra_calls_nothing_that_a_config_file_names(
    experiment: str, key: str, refused_experiment: Refused
) -> None:
    for words in ((), ("--multirun",)):
        assert refused_experiment(experiment, *words).startswith(f"{key}")


@pytest.mark.parametrize(
    "words",
    [
        ("hydra/job_logging=default", "hydra/hydra_logging=default"),
        pytest.param(("--multirun", "hydra/launcher=basic"), marks=pytest.mark.slow),
    ],
)
def test_hydras_own_options_are_allowed(words: tuple[str, ...], train: Train) -> None:
    train(*words, "tracker=local", "duration=1", "model.hidden=[4]")


@pytest.mark.parametrize(
    "words", [("hydra.output_subdir=x",), ("hydra.output_subdir=.hydra", "optimizer.lr=wrong")]
)
def test_hydra_writes_no_config_before_it_is_checked(
    words: tuple[str, ...], train: Train, workdir: Path
) -> None:
    train(*words, "+data.token=planted", status=2)
    assert not [path for path in workdir.rglob("*") if path.is_file()]


RECEIVERS = [
    "tracker: {entity: them}",
    "tracker: {entity: '${oc.env:HOME}'}",
    "tracker: {entity: '${hydra:job.name}'}",
    "tracker: {tracking_uri: 'https://them'}",
    "trackers: {second: {entity: them}}",
]
MLFLOW = "{_target_: hydrant.extensions.mlflow.MlflowTracker, tracking_uri: 'https://them'}"
MISPLACED = {
    f"trackers: {{a.b: {MLFLOW}}}": "trackers: needs names",
    "trackers: 5": "trackers: needs names",
    f"hooks: {{x: {MLFLOW}}}": "hooks.x._target_: 'hydrant.extensions.mlflow.MlflowTracker' is a tracker",
    f"model: {{x: {MLFLOW}}}": "model.x._target_: 'hydrant.extensions.mlflow.MlflowTracker' is a tracker",
}


@pytest.mark.parametrize(
    "experiment", ["trackers: 5", *of_extension(*(text for text in MISPLACED if MLFLOW in text))]
)
def test_a_tracker_lies_where_its_receiver_is_checked(experiment: str, refused_experiment: Refused) -> None:
    assert refused_experiment(experiment).startswith(MISPLACED[experiment])


@pytest.mark.parametrize("experiment", RECEIVERS)
@pytest.mark.parametrize(
    "words", [(), ("--multirun", "seed=0,1"), *of_extension((("tracker.project=other",),))]
)
def test_a_config_file_does_not_choose_who_receives_the_results(
    experiment: str, words: tuple[str, ...], refused_experiment: Refused
) -> None:
    message = refused_experiment(experiment, *words)
    key = message.partition(":")[0]
    assert key in ("tracker.entity", "tracker.tracking_uri", "trackers.second.entity")
    assert message.startswith(f"{key}: a config file sends the results to ")


@pytest.mark.extension
def test_the_user_chooses_who_receives_the_results(
    workdir: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = workdir / "conf" / "experiment" / "team.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\ntracker: {entity: team, mode: disabled}\n")
    words = ("experiment=team", "duration=1", "model.hidden=[4]")
    train(*words, "tracker.entity=team")
    train(*words, "tracker.entity=mine", name="other")
    monkeypatch.setenv("WANDB_ENTITY", "team")
    train(*words, name="variable")
