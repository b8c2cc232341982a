"""The moving average of the weights equals timm's and is evaluated, saved, resumed and exported."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from marks import slow
from run_folders import assert_same_state, rows, summary, weights
from safetensors.torch import load_file
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.utils import weight_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from training_runs import Train, whole_and_resumed

from hydrant import cli
from hydrant.clock import Clock, Steps
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.optimizers import Ema
from hydrant.optimizers.ema import copied_model
from hydrant.training.prepare.build import prepare

SHORT = ("tracker=local", "model=convnet", "model.widths=[4,8]", "duration=9", "log_every=3", "eval_every=3",
         "save_every=1", "keep_last=99", "averaging=ema", "averaging.decay=0.7", "optimizer.lr=0.01")  # fmt: skip


def averaged(folder: Path, link: str = "last") -> dict[str, torch.Tensor]:
    return weights(folder, link, "ema")


def test_the_average_equals_timm_over_the_checkpoints_of_a_run(train: Train) -> None:
    folder = train(*SHORT)
    states = [weights(folder, f"update_{n:08d}") for n in range(1, 10)]
    timm_names = {"start_after": "update_after_step", "warmup": "use_warmup"}
    others: list[dict[str, Any]] = [
        {"start_after": 3}, {"min_decay": 0.2}, {"warmup": False}, {"exclude_buffers": True}
    ]  # fmt: skip
    for settings in ({}, *others):
        plan = prepare(check(compose([*SHORT, *(f"averaging.{k}={value}" for k, value in settings.items())])))
        average, model = plan.averaging, plan.task.model
        average.start(model)
        named = {timm_names.get(key, key): value for key, value in settings.items()}
        expected = ModelEmaV3(model, **{"decay": 0.7, "use_warmup": True} | named)
        for num_updates, state in enumerate(states, 1):
            model.load_state_dict(state)
            average.update(num_updates)
            expected.update(model, step=num_updates)
        assert_same_state(average.state_dict(), dict(expected.module.state_dict()))
        if not settings:
            assert_same_state(averaged(folder), average.state_dict())


def started(model: nn.Module, decay: float) -> Ema:
    ema = Ema(Clock(20, Steps.constant(1), 20), decay=decay, min_decay=0.0, start_after=0, warmup=False,
              warmup_gamma=1.0, warmup_power=1.0, exclude_buffers=False)  # fmt: skip
    ema.start(model)
    return ema


def test_a_weight_with_two_names_is_averaged_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    ema = started(model, decay=0.75)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    nn.init.ones_(model[0].weight)
    ema.update(num_updates=5)
    averaged = ema.state_dict()
    expected = torch.lerp(before["0.weight"], torch.ones(3, 3), 0.25)
    torch.testing.assert_close(averaged["0.weight"], expected)
    torch.testing.assert_close(averaged["2.weight"], expected)
    assert averaged.keys() == before.keys()


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_functions_of_a_copied_model_call_its_own_parts() -> None:
    """As in minGPT, whose blocks keep a lambda over their layers. Averages and passed models are copies. Of the weight
    that torch's old weight norm computes, `copy.deepcopy` makes none."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers, scale, deleted = nn.ModuleDict({"proj": weight_norm(nn.Linear(2, 2))}), 3.0, None
            self.layers, self.unused = layers, lambda: deleted  # noqa: F821
            del deleted  # which leaves an empty cell
            self.mlp = lambda inputs, times=2.0: layers["proj"](inputs) * times * scale

        def forward(self, inputs: Tensor) -> Tensor:
            return self.mlp(inputs)

    original, inputs = Block(), torch.ones(1, 2)
    expected, copied = original(inputs), copied_model(original)
    for parameter in original.parameters():
        parameter.data.zero_()
    assert torch.equal(copied(inputs), expected)
    copied(inputs).sum().backward()
    assert all(parameter.grad.any() for parameter in copied.parameters())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16])
def test_averages_equal_those_of_torch_in_at_least_float32(dtype: torch.dtype) -> None:
    """Complex weights are averaged, not copied. In bfloat16, 20 changes of 1/1000 of a weight would all be lost."""
    model = nn.ParameterDict({"a": torch.ones(3, 2, dtype=dtype), "b": torch.ones(2, dtype=dtype)})
    ema = started(model, decay=0.999)
    wide = copy.deepcopy(model) if dtype.is_complex else copy.deepcopy(model).float()
    expected = AveragedModel(wide, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    for num_updates in range(1, 21):
        with torch.no_grad():
            for target, source in zip(wide.parameters(), model.parameters(), strict=True):
                source.add_(0.5 + (1j if dtype.is_complex else 0))
                target.copy_(source)
        ema.update(num_updates)
        expected.update_parameters(wide)
    averages = ema.state_dict()
    torch.testing.assert_close(averages, dict(cast("nn.Module", expected.module).state_dict()))
    task: Any = SimpleNamespace(model=model)
    with ema.swapped_into(task):
        assert_same_state(dict(task.model.state_dict()), {k: v.to(dtype) for k, v in averages.items()})


@pytest.mark.extension
def test_the_average_is_evaluated_and_exported_too_and_may_choose_the_best_checkpoint(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(*SHORT, "best.metric=val_ema/accuracy")
    evaluations = {row["num_updates"]: row for row in rows(folder) if "val/loss" in row}
    best = max(evaluations.values(), key=lambda row: (row["val_ema/accuracy"], -row["num_updates"]))
    assert summary(folder)["best"] == {
        "metric": "val_ema/accuracy", "value": best["val_ema/accuracy"], "num_updates": best["num_updates"],
    }  # fmt: skip
    assert evaluations[9]["val_ema/loss"] != evaluations[9]["val/loss"]
    capsys.readouterr()
    for which, split in (("ema", "val_ema"), ("model", "val")):
        assert cli.main(["evaluate", str(folder), "--weights", which, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["val/loss"] == evaluations[9][f"{split}/loss"]
    assert cli.main(["export", str(folder), "--weights", "ema", "--output", "ema.safetensors"]) == 0
    assert_same_state(load_file("ema.safetensors"), averaged(folder))


@pytest.mark.slow
def test_the_average_of_a_short_run_is_near_the_weights(train: Train) -> None:
    """With a decay of 0.999 from the start, it would be near the untrained weights."""
    folder = train("tracker=local", "duration=90", "averaging=ema")
    last = summary(folder)["metrics"]
    assert last["val_ema/accuracy"] > last["val/accuracy"] - 0.05


@pytest.mark.parametrize("precision", ["fp32", *slow("bf16_true", "fp16")])
def test_the_average_resumes_exactly(precision: str, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        *SHORT,
        f"precision={precision}",
        "model.dropout=0.2",
        "precision.init_scale=1e9",
        "save_every=9",
    )
    whole, resumed = whole_and_resumed(train, monkeypatch, words, stop_at=5)
    assert rows(resumed) == rows(whole)
    assert_same_state(averaged(resumed), averaged(whole))
    tuned = train(*SHORT, "duration=1", "optimizer.lr=0", f"init_from={whole}", name="tuned")
    assert_same_state(averaged(tuned)["classifier.weight"], weights(whole)["classifier.weight"])


@pytest.mark.extension
@pytest.mark.slow
def test_the_average_does_not_recompile_a_task(train: Train) -> None:
    folder = train(*SHORT, "compile=default", "save_every=9")
    assert summary(folder)["compile"]["recompiles"] == 0
    assert summary(folder)["compile"]["graphs"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", *SHORT, "averaging.decay=1"], "averaging.decay: needs a number from 0 to below 1, not 1"),
        (["train", "best.metric=val_ema/accuracy"], "best.metric: no evaluation gives 'val_ema/accuracy'"),
        (["evaluate", "outputs/plain", "--weights", "bets"], "--weights: unknown weights 'bets'"),
        *slow(
            (["train", *SHORT, "averaging=none", "~averaging.decay"], "averaging.decay"),
            (["evaluate", "outputs/plain", "--weights", "ema"], "--weights: "),
        ),
    ],
)  # fmt: skip
def test_missing_averages_are_rejected(
    words: list[str], message: str, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "evaluate":
        train("tracker=local", "duration=1", "model.hidden=[8]", name="plain")
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err
