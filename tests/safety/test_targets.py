"""The config of a stranger runs no code: each target is a part, or it is refused before it is called."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marks import of_extension
from training_runs import Train

from hydrant import cli
from hydrant.errors import ConfigError
from hydrant.safety.targets import check_targets

Refused = Callable[..., str]
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


@pytest.mark.parametrize(
    "target",
    [
        "torch.utils.collect_env.run", "torch.hub.load", "torch.load", "torch.nn.modules.module.torch.hub.load",
        "torch.utils.cpp_extension.load_inline", "torch.ops.load_library", "torchvision.datasets.utils.download_url",
        "timm.models.load_state_dict", "timm.models._helpers.load_state_dict",
        "hydrant.sweeps.fork_server.call.call_isolated",
        "hydrant.config.instantiate.instantiate_node", "hydrant.runs.record.replace_file", "hydrant.cli.main",
        "hydra.utils.get_method", "timm.optim._optim_factory._import_class",
        "timm.models._builder.build_model_with_cfg", "timm.create_model", "timm.models.create_model",
        "torch.nn.attention._fa3.register_flash_attention_fa3",
        "torch.nn.Embedding.from_pretrained", "torch.nn.Module.load_state_dict", "torch.nn.functional.linear",
        "torchmetrics.utilities.imports.RequirementCache", "torchao.core.config.config_from_dict",
        "torchao.prototype.gptq.gptq_example.main", "torchvision.models.get_model", "hydrant.data.base.Data.__init__",
        "hydrant.schedules._check_fits", "hydrant.training.distributed.world.Parallel.wrap",
        "hydrant.data.workers.pickle.loads", "hydrant.data.InMemorySource.subset",
        *of_extension("hydrant.extensions.language.token_files.write_tokens", "hydrant.extensions.wandb.sdk.stop_core",
                      "hydrant.extensions.wandb.tracker.WandbTracker.file"),
    ],
)  # fmt: skip
def test_a_target_that_loads_or_runs_code_is_refused(target: str) -> None:
    node = {"_target_": target, "_partial_": True}
    nested = {"_target_": "torch.nn.ModuleDict", "modules": {"x": [{"_args_": [node]}]}}
    for config, key in (
        ({"scheduler": node}, "scheduler"),
        ({"model": nested}, "model.modules.x.0._args_.0"),
    ):
        with pytest.raises(ConfigError) as error:
            check_targets({"allow_targets": ["own"], **config})
        assert str(error.value).startswith(
            f"{key}._target_: {target!r} is not allowed: a _target_ must be a part"
        )


def test_a_chain_of_internal_functions_is_refused(refused_experiment: Refused) -> None:
    """Two internal functions of timm: one imports a name, the other calls what it gets. Neither runs code alone."""
    words = ("tracker=local", "~model.hidden", "~model.dropout", "~model.input_shape", "~model.num_classes")
    message = refused_experiment(CHAIN, *words, command="preview")
    assert message.startswith("model._target_: 'timm.models._builder.build_model_with_cfg' is not allowed")


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
def test_modules_metrics_optimizers_and_schedulers_of_libraries_are_allowed(target: str) -> None:
    check_targets({"allow_targets": [], "part": {"_target_": target, "_partial_": True}})


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("torchmetrics.text.infolm.InfoLM", {"model_name_or_path": "theirs"}),
        ("torchmetrics.text.infolm.InfoLM", {"_args_": ["theirs"]}),
        ("torchmetrics.text.bert.BERTScore", {"baseline_url": "http://theirs/x"}),
        ("torchmetrics.multimodal.clip_score.CLIPScore", {"model_name_or_path": "jinaai/jina-clip-v2"}),
        ("torchmetrics.image.fid.FrechetInceptionDistance", {"feature_extractor_weights_path": "theirs.pth"}),
    ],
)
def test_a_library_loads_nothing_that_a_config_names(target: str, arguments: dict[str, Any]) -> None:
    node = {"_target_": target, "_partial_": True, **arguments}
    with pytest.raises(ConfigError, match="is not allowed, because the library would load what it names"):
        check_targets({"allow_targets": [], "part": node})
    check_targets({"allow_targets": ["torchmetrics"], "part": node})
    check_targets({"allow_targets": [], "part": {"_target_": "timm.layers.DropPath", "drop_prob": 0.1}})


@pytest.mark.parametrize("command", ["train", "preview"])
def test_no_interpolation_is_resolved_after_the_checks(command: str, refused_experiment: Refused) -> None:
    message = refused_experiment(f"model:\n  hidden: {LATE}", command=command)
    assert message.startswith("model.hidden: ")
    assert "is still an interpolation after it is resolved" in message


def test_the_user_must_consent_to_allow_targets_of_a_file(
    workdir: Path, train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file can consent: neither an experiment nor the config or the recorded overrides of a run folder."""
    (workdir / "consented_part.py").write_text(
        "class Note:\n    def __init__(self): open('called', 'w').close()\n"
        "    def after_update(self, *_): pass\n"
    )
    folder = workdir / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "consented_part.yaml").write_text(
        "# @package _global_\nallow_targets: [consented_part]\nhooks: {x: {_target_: consented_part.Note}}\n"
    )
    words = ("experiment=consented_part", "tracker=local", "duration=1", "model.hidden=[4]")
    for command in (["train"], ["train", "--multirun"], ["preview"]):
        assert cli.main([*command, *words]) == 2
        message = capsys.readouterr().err
        assert message.startswith(
            "error: allow_targets: a config file requests to run code of 'consented_part'"
        ), message
    monkeypatch.setenv("HYDRANT_ALLOW_TARGETS", "other")
    assert cli.main(["train", *words]) == 2
    assert not (workdir / "called").exists()
    run = train(*words, "allow_targets=[consented_part]")
    assert (workdir / "called").exists()
    monkeypatch.setenv("HYDRANT_ALLOW_TARGETS", "other,consented_part")
    train(*words, name="again")
    monkeypatch.delenv("HYDRANT_ALLOW_TARGETS")
    for overrides in ([], ["seed=1"]):
        assert cli.main(["evaluate", str(run), *overrides]) == 2
        assert "requests to run code of 'consented_part'" in capsys.readouterr().err
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("allow_targets:\n- consented_part", "allow_targets: []"))
    assert cli.main(["evaluate", str(run), "seed=1"]) == 2
    assert "requests to run code of 'consented_part'" in capsys.readouterr().err
    assert cli.main(["evaluate", str(run), "allow_targets=[consented_part]"]) == 0
