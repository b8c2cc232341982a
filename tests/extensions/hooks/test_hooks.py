"""The hooks that the product has: freezing, ending early, diagnostics, samples."""

import math
import sys
from pathlib import Path

import pytest
import torch
from marks import slow
from PIL import Image
from ranks import run_on_ranks
from run_folders import assert_close_rows, assert_same_state, rows, summary, training, weights
from training_runs import DIGITS, Train, UserModule, whole_and_resumed

from hydrant.extensions.hooks import StopAt, steepest_lr
from hydrant.training.checkpoint.weights import find_weights

RUN = (*DIGITS, "duration=6", "log_every=1", "eval_every=2", "save_every=1", "keep_last=9", "model.hidden=[16,8]",
       "model.dropout=0")  # fmt: skip
STAGED = (
    "hook=freeze",
    "hooks.freeze.stages=[{match: hidden.0, until: 4}, {match: .*bias}, {match: hidden, until: 2}]",
)
"""The first layer trains from update 5 on, the second from update 3 on, and no bias."""


def moved(folder: Path, before: int, after: int) -> set[str]:
    """Return the names of the weights that differ between two checkpoints."""
    one, other = (
        find_weights(str(folder / "checkpoints" / f"update_{n:08d}"), "init_from").read("init_from")
        for n in (before, after)
    )
    return {name for name in one if not torch.equal(one[name], other[name])}


FIRST, SECOND, LAST = "hidden.0.0.weight", "hidden.1.0.weight", "classifier.weight"


@pytest.mark.parametrize(
    "words",
    [
        "optimizer=adamw",
        "optimizer=sgd optimizer.momentum=0.9 optimizer.weight_decay=0.1",
        *slow("optimizer=muon", "optimizer=lbfgs", "compile=aot_eager compile.optimizer=true"),
    ],
)
def test_a_weight_moves_from_the_update_on_where_its_stage_ends(words: str, train: Train) -> None:
    folder = train(*RUN, *STAGED, *words.split())
    assert moved(folder, 1, 2) == {LAST}
    assert moved(folder, 2, 3) == moved(folder, 3, 4) == {LAST, SECOND}
    assert moved(folder, 4, 5) == moved(folder, 5, 6) == {LAST, SECOND, FIRST}


def test_a_run_with_stages_resumes_exactly(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, resumed = whole_and_resumed(train, monkeypatch, (*RUN, *STAGED), stop_at=3)
    assert rows(whole) == rows(resumed)
    assert_same_state(weights(whole), weights(resumed))
    assert_same_state(training(whole)["optimization"], training(resumed)["optimization"])


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_stages_and_diagnostics_are_the_same_on_two_ranks(parallel: str, train: Train, workdir: Path) -> None:
    words = (*RUN, *STAGED, "hook=[freeze,diagnostics]", "hooks.diagnostics.every=1")
    one = train(*words, name="one")
    two, continued, half = (
        workdir / "outputs" / name for name in ("two", "continued", "two/checkpoints/update_00000003")
    )
    run_on_ranks(2, workdir, [
        ("train", *words, f"parallel={parallel}", "name=two"),
        ("train", *words, f"parallel={parallel}", "name=continued", f"resume={half}"),
    ])  # fmt: skip
    assert_close_rows(one, two)
    assert_close_rows(two, continued)
    assert "gradient_cosine/hidden.0.0" in rows(continued)[-1], (
        "after an update that the run did not make itself"
    )
    assert "hidden.0.0" not in str(rows(two)[1].keys()), "frozen layers have no row"
    for n in range(1, 6):
        assert moved(one, n, n + 1) == moved(two, n, n + 1)
    assert train(*words, f"resume={half}", name="on_one_rank")
    assert_close_rows(one, workdir / "outputs" / "on_one_rank")


@pytest.mark.parametrize("metric", ["val/accuracy", *slow("train/accuracy")])
def test_a_metric_ends_the_run_at_the_first_row_that_reaches_it(metric: str, train: Train) -> None:
    words = (*DIGITS, "duration=40", "optimizer.lr=0.01", "log_every=3")
    whole = train(*words, name="whole")
    accuracies = {row["num_updates"]: row[metric] for row in rows(whole) if metric in row}
    target = sorted(value for n, value in accuracies.items() if n)[3]
    first = min(n for n, value in accuracies.items() if n and value >= target)
    folder = train(*words, "hook=stop_at", f"hooks.stop_at.metric='{metric}>={target}'", name="ended")
    record, last = summary(folder), rows(folder)[-1]
    assert (record["status"], record["num_updates"], last["num_updates"]) == ("finished", first, first)
    assert record["end_reason"].startswith(f"stop_at: {metric} ")
    assert "val/accuracy" in last, "the last update is evaluated"
    assert first < 40


def test_the_time_before_a_resume_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    hook = StopAt(metric=None, time="2min", every=None)
    hook.on_start(None)  # type: ignore[arg-type]
    now = 150.0
    state, resumed = hook.state_dict(), StopAt(metric=None, time="2min", every=None)
    assert state == {"seconds": 50.0}
    resumed.load_state_dict(state)
    now = 1000.0
    resumed.on_start(None)  # type: ignore[arg-type]
    now = 1069.0
    assert resumed.state_dict() == {"seconds": 119.0}


def test_a_time_ends_the_run(train: Train) -> None:
    folder = train(*RUN, "hook=stop_at", "hooks.stop_at.time=0s", "hooks.stop_at.every=3")
    assert (summary(folder)["num_updates"], summary(folder)["end_reason"]) == (
        3,
        "stop_at: 0s of training are over",
    )


def test_the_reason_of_a_hook_that_no_longer_holds_is_removed(train: Train) -> None:
    hook = ("hook=stop_at", "hooks.stop_at.metric='val/loss>=0'")
    folder = train(*RUN, *hook, "duration=4")
    assert summary(folder)["end_reason"]
    train(*RUN, "hook=stop_at", "hooks.stop_at.metric='val/loss<=0'", "duration=4", "resume_strict=false")
    assert summary(folder)["num_updates"] == 4
    assert summary(folder)["end_reason"] is None


def test_diagnostics_are_those_of_the_checkpoints(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*RUN, "optimizer=sgd", "optimizer.momentum=0", "scheduler=constant", "optimizer.lr=0.1",
             "optimizer.weight_decay=0", "hook=diagnostics", "hooks.diagnostics.every=3")  # fmt: skip
    whole, resumed = whole_and_resumed(train, monkeypatch, words, stop_at=4)
    assert rows(whole) == rows(resumed)
    by_update = {row["num_updates"]: row for row in rows(whole)}
    assert [n for n, row in by_update.items() if "update_ratio/classifier" in row] == [3, 6]
    gradients = dict[int, torch.Tensor]()
    for n in (3, 6):
        old, new = (weights(whole, f"update_{m:08d}") for m in (n - 1, n))
        flat = [
            torch.cat([w["classifier.weight"].flatten(), w["classifier.bias"]]).double() for w in (old, new)
        ]
        change = flat[1] - flat[0]
        gradients[n] = change / -0.1
        row = by_update[n]
        assert row["update_ratio/classifier"] == pytest.approx(
            float(change.norm() / flat[0].norm()), rel=1e-5
        )
        assert row["weight_rms/classifier"] == pytest.approx(float(flat[0].square().mean().sqrt()), rel=1e-5)
        assert row["gradient_rms/classifier"] == pytest.approx(
            float(gradients[n].square().mean().sqrt()), rel=1e-4
        )
    assert "gradient_cosine/classifier" not in by_update[3]
    cosine = torch.cosine_similarity(gradients[3], gradients[6], dim=0)
    assert by_update[6]["gradient_cosine/classifier"] == pytest.approx(float(cosine), rel=1e-4)


SAMPLES = """
import torch

def show(model):
    assert not model.training and not torch.is_grad_enabled()
    noise = torch.rand(3, 8, 6)
    return {"picture": noise, "words": f"{noise.sum():.3f}"}
"""


def test_samples_are_logged_after_each_evaluation(
    train: Train, user_module: UserModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_module("shows", SAMPLES)
    monkeypatch.delitem(sys.modules, "shows", raising=False)
    without = train(*RUN, "model.dropout=0.5", name="without")
    folder = train(*RUN, "model.dropout=0.5", "hook=samples", "hooks.samples.function._target_=shows.show",
                   "allow_targets=[shows]")  # fmt: skip
    assert rows(folder) == rows(without)  # they change nothing
    texts = {path.name: path.read_text() for path in (folder / "texts" / "words").iterdir()}
    assert sorted(texts) == [f"update_{n:08d}.txt" for n in (0, 2, 4, 6)]
    assert len(set(texts.values())) == 1  # the same random numbers each time
    with Image.open(folder / "pictures" / "picture" / "update_00000006.png") as picture:
        assert picture.size == (6, 8)


CALLS = """
import torch
from hydrant.tasks import Classification

def pixels(model):
    return torch.zeros(3, 1, 8, 8, device=next(model.parameters()).device)

def show(model):
    return {"words": f"{model(pixels(model)).sum():.3f}"}

class Drawing(Classification):
    def pictures(self):
        return {"drawn": self.model(pixels(self.model)).sigmoid()[None]}
"""


@pytest.mark.slow
def test_samples_and_pictures_of_a_compiled_model_compile_nothing(
    train: Train, user_module: UserModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_module("calls", CALLS)
    monkeypatch.delitem(sys.modules, "calls", raising=False)
    folder = train(*RUN, "compile=default", "compile.backend=aot_eager", "compile.scope=model",
                   "compile.max_recompiles=0", "allow_targets=[calls]", "task._target_=calls.Drawing",
                   "hook=samples", "hooks.samples.function._target_=calls.show")  # fmt: skip
    assert [(folder / place).is_dir() for place in ("texts/words", "pictures/drawn")] == [True, True]


FIND = ("data=digits", "tracker=local", "model.hidden=[16]", "debug=lr_finder", "duration=40")


@pytest.mark.slow
def test_the_lr_finder_draws_its_curve_and_keeps_no_weights(train: Train) -> None:
    folder = train(*FIND)
    [row] = [row for row in rows(folder) if "lr_finder/lr" in row]
    assert 1e-7 < row["lr_finder/lr"] < 10
    assert row["num_updates"] == summary(folder)["num_updates"]
    [picture] = (folder / "pictures" / "lr_finder").iterdir()
    with Image.open(picture) as image:
        assert image.size[0] > image.size[1]
    assert not list((folder / "checkpoints").glob("update_*"))


def test_the_lr_finder_resumes_exactly(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, resumed = whole_and_resumed(train, monkeypatch, (*FIND, "save_every=20"), stop_at=10)
    assert rows(whole) == rows(resumed)
    assert training(whole)["hooks"] == training(resumed)["hooks"]
    assert len(training(whole)["hooks"]["lr_finder"]["curve"]) == summary(whole)["num_updates"]


@pytest.mark.slow
@pytest.mark.parametrize("words", ["compile=eager", "compile=default compile.backend=aot_eager"])
def test_the_curve_is_the_loss_of_each_update(words: str, train: Train) -> None:
    folder = train(*FIND, *words.split(), "log_every=1", "eval_every=2", "save_every=40", "global_batch_size=32",
                   "micro_batch_size=16", "hooks.lr_finder.smoothing=0")  # fmt: skip
    losses = [row["train/loss"] for row in rows(folder) if "train/loss" in row]
    assert training(folder)["hooks"]["lr_finder"]["curve"] == pytest.approx(losses, rel=1e-5)


def test_no_lr_is_suggested_where_the_loss_never_falls() -> None:
    assert steepest_lr([0.1, 1.0, 10.0, 100.0], [1.0, 1.0, 2.0, math.nan]) is None
    assert steepest_lr([0.1], [1.0]) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("hook=freeze",), "hooks.freeze.stages: needs a value"),
        (("hook=freeze", "hooks.freeze.stages=[{match: hidden}]", "+hook@hooks.late=freeze",
          "hooks.late.stages=[{match: classifier}]"),
         "hooks.freeze.stages: the hooks freeze and late all freeze weights; put all stages into one hook"),
        (("hook=lr_finder",), "scheduler: lr_finder needs an lr above 0 that grows in every update; debug=lr_finder"),
        (("hook=stop_at", "hooks.stop_at.metric='val/acuracy>=1'"), "no evaluation gives 'val/acuracy'; did you mean"),
        (("hook=stop_at", "hooks.stop_at.metric='train/acuracy>=1'"), "no evaluation gives 'val/acuracy'; did"),
        *slow(
            (("hook=freeze", "hooks.freeze.stages=[{match: x}]"), "hooks.freeze.stages: 'x' matches no trained weight"),
            (("hook=freeze", "hooks.freeze.stages=[{match: hidden, till: 3}]"), "argument 'till'; write {"),
            (("hook=freeze", "hooks.freeze.stages=[{match: hidden, until: x}]"), "stages: 'x' is not a duration"),
            (("hook=lr_finder", "scheduler=linear", "scheduler.warmup=50%", "scheduler.end_ratio=1"), "an lr above 0"),
            (("hook=stop_at", "hooks.stop_at.time=2x"), "hooks.stop_at.time: '2x' is not a duration"),
            (("hook=stop_at", "hooks.stop_at.metric='val/accuracy=1'"), "metric: 'val/accuracy=1' is not a target"),
        ),
    ],
)  # fmt: skip
def test_a_hook_that_does_not_fit_is_refused(
    words: tuple[str, ...], message: str, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*RUN, *words, status=2)
    assert message in capsys.readouterr().err
