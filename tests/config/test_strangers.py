"""Configs of strangers run no code: what they name is a part, or is refused before anything of it is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hydrant import cli
from hydrant.config.targets import check_targets
from hydrant.errors import ConfigError

Refused = Callable[..., str]
CALL = "{_target_: torch.utils.collect_env.run, command: touch called}"
OS = "os.system, command: touch called"
CHAIN = """
model:
  _target_: timm.models._builder.build_model_with_cfg
  model_cls: {_target_: timm.optim._optim_factory._import_class, class_string: torch.utils.collect_env.run}
  variant: x
  pretrained: false
  pretrained_cfg: {num_classes: null, input_size: null}
  command: touch called
"""
LATE = "'\\${oc.create:{_target_: torch.utils.collect_env.run, command: touch called}}'"


@pytest.fixture
def refused(workdir: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Run a command with a stranger's experiment; what is said. Nothing was called and nothing begun."""
    monkeypatch.setattr("sys.argv", ["hydrant"])

    def run(experiment: str, *words: str, command: str = "train") -> str:
        file = workdir / "conf" / "experiment" / "theirs.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# @package _global_\n{experiment}\n")
        assert cli.main([command, *words, "experiment=theirs"]) == 2
        assert {path.name for path in workdir.iterdir()} <= {"conf", "__pycache__"}
        return capfd.readouterr().err.splitlines()[-1].removeprefix("error: ")

    return run


@pytest.mark.parametrize(
    ("experiment", "key"),
    [
        (f"hydra:\n  callbacks:\n    x: {CALL}", "hydra.callbacks.x._target_"),
        (f"schedules:\n  x: {CALL}\nhydra:\n  callbacks:\n    x: ${{schedules.x}}", "hydra.callbacks.x"),
        ("hydra:\n  callbacks: ${model}", "hydra.callbacks"),
        (f"hydra:\n  callbacks: {{x: {{_target_: hydra.experimental.callbacks.{OS}}}}}", "hydra.callbacks.x._target_"),
        (f"hydra:\n  sweeper: {{sampler: {{_target_: optuna.logging.{OS}}}}}", "hydra.sweeper"),
        ("hydra:\n  sweeper: {storage: {_target_: optuna.storages.RedisStorage}}", "hydra.sweeper"),
        (
            "hydra:\n  job_logging: {handlers: {file: {class: logging.FileHandler, filename: own.py}}}",
            "hydra.job_logging.handlers.file.filename",
        ),
        ("hydra:\n  job: {name: ../own}", "hydra.job.name"),
        (
            f"hydra:\n  hydra_logging: {{handlers: {{x: {{class: logging.{OS}}}}}}}",
            "hydra.hydra_logging.handlers.x.class",
        ),
        (f"hydra:\n  sweeper:\n    sampler: {CALL}", "hydra.sweeper"),
        (
            "hydra:\n  job_logging:\n    version: 1\n    root: {handlers: [x]}\n    handlers:\n"
            "      x: {(): torch.utils.collect_env.run, command: touch called}",
            "hydra.job_logging.handlers.x.()",
        ),
        ("hydra:\n  hydra_logging: {version: 1, root: {}, x: 'ext://my_module.x'}", "hydra.hydra_logging.x"),
        ("hydra:\n  hydra_logging: {handlers: {x: {class: my.Handler}}}", "hydra.hydra_logging.handlers.x.class"),
        ("hydra:\n  job: {env_set: {LD_PRELOAD: ./their.so}}", "hydra.job.env_set.LD_PRELOAD"),
    ],
)  # fmt: skip
def test_hydra_calls_nothing_of_a_config(experiment: str, key: str, refused: Refused) -> None:
    for words in ((), ("--multirun",)):
        assert refused(experiment, *words).startswith(f"{key}")


@pytest.mark.parametrize(
    "target",
    [
        "torch.utils.collect_env.run", "torch.hub.load", "torch.load", "torch.nn.modules.module.torch.hub.load",
        "torch.utils.cpp_extension.load_inline", "torch.ops.load_library", "torchvision.datasets.utils.download_url",
        "timm.models.load_state_dict", "timm.models._helpers.load_state_dict", "hydrant.isolation.call_isolated",
        "hydrant.making.make_node", "hydrant.trackers.record.replace_file", "hydrant.cli.main",
        "hydra.utils.get_method", "timm.optim._optim_factory._import_class",
        "timm.models._builder.build_model_with_cfg", "timm.create_model", "timm.models.create_model",
        "torch.nn.attention._fa3.register_flash_attention_fa3",
        "torch.nn.Embedding.from_pretrained", "torch.nn.Module.load_state_dict", "torch.nn.functional.linear",
        "torchmetrics.utilities.imports.RequirementCache", "torchao.core.config.config_from_dict",
        "torchao.prototype.gptq.gptq_example.main", "torchvision.models.get_model", "hydrant.data.base.Data.__init__",
        "hydrant.schedules.cycles._cyclic", "hydrant.parallel.Ranks.wrap", "hydrant.data.archive.pickle.loads",
    ],
)  # fmt: skip
def test_what_loads_or_runs_code_is_no_part(target: str) -> None:
    node = {"_target_": target, "_partial_": True}
    nested = {"_target_": "torch.nn.ModuleDict", "modules": {"x": [{"_args_": [node]}]}}
    for config, key in (
        ({"scheduler": node}, "scheduler"),
        ({"model": nested}, "model.modules.x.0._args_.0"),
    ):
        with pytest.raises(ConfigError) as refused:
            check_targets({"allow_targets": ["own"], **config})
        assert str(refused.value).startswith(
            f"{key}._target_: {target!r} is not allowed: what is called is a part"
        )


def test_a_part_that_would_call_what_another_finds_is_none(refused: Refused) -> None:
    """Two functions for timm's own use, neither of which runs anything by itself."""
    words = ("tracker=local", "~model.hidden", "~model.dropout", "~model.input_shape", "~model.num_classes")
    told = refused(CHAIN, *words, command="preview")
    assert told.startswith("model._target_: 'timm.models._builder.build_model_with_cfg' is not allowed")


@pytest.mark.parametrize(
    "target",
    [
        "torch.nn.Linear", "torch.nn.ModuleDict", "torch.optim.Muon", "torch.optim.lr_scheduler.ReduceLROnPlateau",
        "torch.nn.modules.linear.Linear", "torchmetrics.classification.MulticlassF1Score", "timm.layers.DropPath",
        "torchmetrics.MetricCollection", "torchmetrics.text.Perplexity", "torchvision.models.ResNet",
        "torchvision.transforms.v2.Compose", "timm.loss.LabelSmoothingCrossEntropy", "timm.optim.Lion",
        "timm.optim.SGD", "torchvision.models.resnet18",
    ],
)  # fmt: skip
def test_modules_metrics_optimizers_and_schedulers_of_others_are_parts(target: str) -> None:
    check_targets({"allow_targets": [], "part": {"_target_": target, "_partial_": True}})


@pytest.mark.parametrize("command", ["train", "preview"])
def test_nothing_is_resolved_late(command: str, refused: Refused) -> None:
    told = refused(f"model:\n  hidden: {LATE}", command=command)
    assert told.startswith("model.hidden: ")
    assert "is still an interpolation once resolved" in told


def test_whoever_runs_it_consents_to_what_a_file_allows(
    workdir: Path,
    train: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No file does: not an experiment, nor the config or the recorded overrides of a run folder."""
    (workdir / "theirs.py").write_text(
        "from hydra.experimental.callback import Callback\n"
        "class Note(Callback):\n    def __init__(self): open('called', 'w').close()\n"
    )
    folder = workdir / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "theirs.yaml").write_text(
        "# @package _global_\nallow_targets: [theirs]\nhydra: {callbacks: {x: {_target_: theirs.Note}}}\n"
    )
    words = ("experiment=theirs", "tracker=local", "duration=1", "model.hidden=[4]")
    for command in (["train"], ["train", "--multirun"], ["preview"]):
        assert cli.main([*command, *words]) == 2
        told = capsys.readouterr().err
        assert told.startswith("error: allow_targets: a config file asks to run code of 'theirs'"), told
    monkeypatch.setenv("HYDRANT_ALLOW_TARGETS", "other")
    assert cli.main(["train", *words]) == 2
    assert not (workdir / "called").exists()
    run = train(*words, "allow_targets=[theirs]")
    assert (workdir / "called").exists()
    monkeypatch.setenv("HYDRANT_ALLOW_TARGETS", "other,theirs")
    train(*words, name="again")
    monkeypatch.delenv("HYDRANT_ALLOW_TARGETS")
    for asked in ([], ["seed=1"]):
        assert cli.main(["evaluate", str(run), *asked]) == 2
        assert "asks to run code of 'theirs'" in capsys.readouterr().err
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("allow_targets:\n- theirs", "allow_targets: []"))
    assert cli.main(["evaluate", str(run), "seed=1"]) == 2
    assert "asks to run code of 'theirs'" in capsys.readouterr().err
    assert cli.main(["evaluate", str(run), "allow_targets=[theirs]"]) == 0


@pytest.mark.parametrize(
    "words", [("hydra/job_logging=default", "hydra/hydra_logging=default"), ("hydra/launcher=basic",)]
)
def test_hydras_own_options_are_taken(words: tuple[str, ...], train: Callable[..., Path]) -> None:
    train(*words, "tracker=local", "duration=1", "model.hidden=[4]")
