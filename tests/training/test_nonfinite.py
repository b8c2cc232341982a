"""NaN, infinity and overflow: updates are skipped, or the run fails and keeps its last good checkpoint."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from run_folders import assert_same_state, rows, saved, saved_updates, summary, weights
from training_runs import DIGITS, Train, UserModule, whole_and_resumed

from hydrant.installation import entry_points


def test_nan_names_the_interval_and_is_never_saved(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(*DIGITS, "optimizer=sgd", "optimizer.lr=1e30", "duration=40", "log_every=8", "eval_every=null",
                   "save_every=8", status=1)  # fmt: skip
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: train/loss became NaN or infinite between updates 0 and 8")
    assert not (folder / "checkpoints").exists()
    record = summary(folder)
    assert record["status"] == "failed"
    assert record["error"]["type"] == "NonFiniteError"
    assert record["error"]["message"] in last
    assert (folder / "schedule.png").exists() == ("pictures" in entry_points("hydrant.listeners"))
    assert "Traceback" in (folder / "train.log").read_text()


NAN_SET = """
import torch
from torch.utils.data import Dataset

class Numbers(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((4,), torch.nan if index == 29 else 0.1), index % 3
"""


@pytest.mark.parametrize("kind", ["tensors", "dataset"])
def test_nan_in_the_inputs_names_the_sample(
    kind: str, train: Train, user_module: UserModule, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user_module("nan_set", NAN_SET)
    inputs = np.full((40, 4), 0.1, np.float32)
    inputs[29, 2] = np.nan
    np.savez(workdir / "t.npz", inputs=inputs, targets=np.arange(40) % 3)
    own = (
        "data.train._target_=nan_set.Numbers",
        "data.val._target_=nan_set.Numbers",
        "allow_targets=[nan_set]",
        "data.num_workers=0",
    )
    words = {"tensors": ("data.train=t.npz", "data.val=t.npz"), "dataset": own}[kind]
    train(f"data={kind}", *words, "data.num_classes=3", "data.input_shape=[4]", "model.hidden=[8]",
          "global_batch_size=4", "micro_batch_size=2", "duration=20", "tracker=local", "eval_every=null", "log_every=5",
          status=1)  # fmt: skip
    name = {"tensors": "training sample 29", "dataset": "sample 29 of data.train"}[kind]
    error = capsys.readouterr().err
    assert re.search(rf"The inputs of {name}, of update \d+, hold NaN or infinity: correct the data", error)
    assert "optimizer.lr" not in error


MASKED = """
import torch
from hydrant.models import MLP

class Masked(MLP):
    def __init__(self, nan_at, **settings):
        super().__init__(**settings)
        self.nan_at = nan_at
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
        self.second = torch.nn.Module()
        self.second.register_buffer("mask", self.mask)
        self.frozen = torch.nn.Parameter(torch.full((2,), -torch.inf), requires_grad=False)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, inputs):
        if self.training and not inputs.is_meta:
            self.count += 1
            if self.count == self.nan_at:
                self.mask.fill_(torch.nan)
        return super().forward(inputs)
"""


def test_a_buffer_may_hold_infinity_but_not_nan(
    train: Train, user_module: UserModule, capsys: pytest.CaptureFixture[str]
) -> None:
    user_module("masked", MASKED)
    words = (*DIGITS, "model._target_=masked.Masked", "allow_targets=[masked]", "duration=4", "save_every=2")
    for averaging in ("none", "ema", "tail"):
        train(*words, "+model.nan_at=0", f"averaging={averaging}", name=averaging)
    folder = train(*words, "+model.nan_at=3", name="nan", status=1)
    assert "a buffer or a frozen weight became NaN or infinite" in capsys.readouterr().err
    assert saved_updates(folder / "checkpoints") == [2]


POISON = """
from torch import nn

class Poisoned(nn.Module):
    def __init__(self, *, input_shape, num_classes, hidden, dropout, bad):
        super().__init__()
        self.norm, self.linear, self.bad, self.calls = nn.BatchNorm1d(64), nn.Linear(64, 10), bad, 0
        self.register_buffer("scale", self.linear.bias.data[:1].expand(64), persistent=False)

    def forward(self, inputs):
        self.calls += self.training
        if self.training and self.calls in self.bad:
            inputs = inputs * float("nan")
        return self.linear(self.norm(inputs.flatten(1)))
"""


def test_non_finite_updates_are_skipped_and_counted(
    train: Train, user_module: UserModule, capsys: pytest.CaptureFixture[str]
) -> None:
    user_module("poison", POISON)
    words = (*DIGITS, "model._target_=poison.Poisoned", "allow_targets=[poison]", "duration=8", "log_every=1",
             "averaging=ema", "averaging.decay=0.5", "scheduler=constant")  # fmt: skip
    train(*words, "+model.bad=[3,4,7]", name="failed", status=1)
    skipping = rows(train(*words, "+model.bad=[3,4,7]", "skip_non_finite=true", name="skipping"))
    logged = [row for row in skipping if "optim/lr" in row]
    assert [row["num_updates"] for row in logged] == list(range(1, 9))
    assert [n for n, row in enumerate(logged, start=1) if "train/loss" not in row] == [3, 4, 7]
    assert logged[-1]["optim/num_skipped"] == 3
    assert math.isfinite(skipping[-1]["val/loss"])
    only_two = train(*words, "+model.bad=[3,4,5,6,7,8]", "skip_non_finite=true", name="only_two")
    two = train(*words, "+model.bad=[]", "duration=2", name="two")
    for part in ("model", "ema"):  # a skipped update changes nothing, not even batch norm statistics
        assert_same_state(saved(only_two, part), saved(two, part))
    train(*words, "+model.bad=[2,4,5,6]", "skip_non_finite=true", "max_skipped=2", name="many", status=1)
    assert "between updates 3 and 6; more in a row than max_skipped=2" in capsys.readouterr().err
    half = train(*words[:-3], "+model.bad=[3,4,7]", "skip_non_finite=true", "precision=fp16", "averaging=tail",
                 "averaging.start=2", "averaging.every=1", "save_every=1", "keep_last=9", name="half")  # fmt: skip
    assert rows(half)[-1]["optim/num_skipped"] == 3  # the loss scale is not the reason
    tail = torch.stack([weights(half, f"update_{n:08d}")["linear.weight"] for n in range(3, 9)])
    torch.testing.assert_close(weights(half, part="ema")["linear.weight"], tail.mean(0))


def test_a_run_whose_gradients_always_overflow_fails(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*DIGITS, "precision=fp16", "precision.init_scale=1e30", "max_skipped=2", "duration=2", status=1)
    assert "a scaled gradient became NaN or infinite" in capsys.readouterr().err


def test_an_overflow_does_not_change_batch_norm_statistics(train: Train) -> None:
    folder = train("tracker=local", "model=convnet", "model.widths=[4,8]", "duration=3", "log_every=1",
                   "precision=fp16", "precision.init_scale=1e9")  # fmt: skip
    state = saved(folder, "model")
    assert rows(folder)[-1]["num_updates"] == 3
    assert {int(value) for name, value in state.items() if name.endswith("num_batches_tracked")} == {3}


def test_fp16_state_and_skipped_updates_resume(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*DIGITS, "precision=fp16", "precision.init_scale=1e9", "duration=8", "log_every=1")
    whole, resumed = whole_and_resumed(train, monkeypatch, words, stop_at=5)
    assert rows(whole)[-1]["optim/num_skipped"] > 0  # so large a scale overflows first
    assert rows(whole)[-1]["num_updates"] == 8
    assert rows(whole) == rows(resumed)
    assert_same_state(saved(whole, "training"), saved(resumed, "training"))
