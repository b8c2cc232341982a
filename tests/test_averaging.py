"""The average of the weights: timm's, evaluated, saved, resumed and exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checks import assert_same_state, rows, summary, weights
from timm.utils import ModelEmaV3

from hydrant import cli, loop
from hydrant.models import ConvNet

Train = Callable[..., Path]
SHORT = ("tracker=local", "model=convnet", "model.widths=[4,8]", "duration=9", "log_every=3", "eval_every=3",
         "save_every=1", "keep_last=99", "averaging=ema", "averaging.decay=0.7", "optimizer.lr=0.01")  # fmt: skip


def averaged(folder: Path, link: str = "last") -> dict[str, torch.Tensor]:
    return weights(folder, link, "ema")


@pytest.mark.parametrize(
    "settings", [{}, {"start_after": 3}, {"warmup": True, "min_decay": 0.2}, {"exclude_buffers": True}]
)
def test_is_timm_s_over_the_checkpoints_of_the_run(settings: dict[str, Any], train: Train) -> None:
    folder = train(*SHORT, *(f"averaging.{key}={value}" for key, value in settings.items()))
    timms = {"start_after": "update_after_step", "warmup": "use_warmup"}
    model = ConvNet(input_shape=(1, 8, 8), num_classes=10, widths=[4, 8], dropout=0.0)
    theirs = ModelEmaV3(model, decay=0.7, **{timms.get(key, key): value for key, value in settings.items()})
    for num_updates in range(1, 10):
        model.load_state_dict(weights(folder, f"update_{num_updates:08d}"))
        theirs.update(model, step=num_updates)
    assert_same_state(averaged(folder), dict(theirs.module.state_dict()))
    assert averaged(folder).keys() == weights(folder).keys()


def test_it_is_evaluated_beside_the_weights_and_may_decide_the_best(
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
    from safetensors.torch import load_file

    assert_same_state(load_file("ema.safetensors"), averaged(folder))


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def test_resumes_exactly(precision: str, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    same_run = (*SHORT, f"precision={precision}", "model.dropout=0.2", "precision.init_scale=1e9")
    whole = train(*same_run, name="whole")
    with monkeypatch.context() as patch:
        original = loop.make_update

        def interrupted(run: loop.Run, *, measure: bool) -> Any:
            if run.state.num_updates == 4:
                run.stop_signal = lambda: 2
            return original(run, measure=measure)

        patch.setattr(loop, "make_update", interrupted)
        train(*same_run, name="broken", status=130)
    broken = train(*same_run, name="broken")
    assert rows(broken) == rows(whole)
    assert_same_state(averaged(broken), averaged(whole))
    tuned = train(*SHORT, "optimizer.lr=0", f"init_from={whole}", name="tuned")
    assert_same_state(averaged(tuned)["classifier.weight"], weights(whole)["classifier.weight"])


@pytest.mark.slow
def test_a_compiled_task_is_not_compiled_again_for_it(train: Train) -> None:
    folder = train(*SHORT, "compile=default", "save_every=9")
    assert summary(folder)["compile"]["recompiles"] == 0
    assert summary(folder)["compile"]["graphs"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", *SHORT, "averaging.decay=1"], "averaging.decay: needs a number from 0 on, below 1; not 1"),
        (["train", *SHORT, "averaging=none", "~averaging.decay"], "averaging.decay"),
        (["train", "best.metric=val_ema/accuracy"], "best.metric: no evaluation gives 'val_ema/accuracy'"),
        (["evaluate", "outputs/plain", "--weights", "ema"], "--weights: "),
        (["evaluate", "outputs/plain", "--weights", "best"], "--weights: unknown weights 'best'"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(
    words: list[str], message: str, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train("tracker=local", "duration=1", "model.hidden=[8]", name="plain")
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err
