"""A run that is interrupted and continued, or continues another run, equals the uninterrupted one."""

import pytest
from marks import of_extension, slow
from run_folders import assert_same_state, rows, saved, summary
from training_runs import DIGITS, Train, UserModule, interrupt_at, whole_and_resumed


@pytest.mark.parametrize(
    "optimizer", ["adamw", *slow("sgd", "lbfgs", "asgd"), *of_extension(*slow("muon", "lamb", "torch_muon"))]
)
@pytest.mark.parametrize("stop_at", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_an_interrupted_run_continues_exactly(
    train: Train, monkeypatch: pytest.MonkeyPatch, optimizer: str, stop_at: int
) -> None:
    words = (*DIGITS, f"optimizer={optimizer}", "duration=10", "log_every=4", "micro_batch_size=16",
             "data.augment.max_shift=1", "model.dropout=0.3", "scheduler.warmup=20%", "keep_last=9")  # fmt: skip
    whole = train(*words, name="whole")
    with monkeypatch.context() as patch:
        interrupt_at(patch, stop_at)
        broken = train(*words, name="broken", status=130)
    status = summary(broken)
    assert (status["status"], status["num_updates"]) == ("preempted", stop_at)
    train(*words, name="broken")
    assert rows(whole) == rows(broken)
    for part in ("model", "training"):
        assert_same_state(saved(whole, part), saved(broken, part))


TASK = """
import torch
from hydrant.tasks import Classification

class Scaled(Classification):
    def __init__(self, model, **settings):
        super().__init__(model, **settings)
        self.temperature = torch.nn.Parameter(torch.ones(()))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, batch):
        if self.training:
            self.count += 1
        outcome = super().forward(batch)
        return outcome._replace(losses={"scaled": outcome.losses["cross_entropy"] * self.temperature.exp()})
"""


def test_parameters_and_buffers_of_the_task_resume(
    train: Train, user_module: UserModule, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    user_module("scaled_task", TASK)
    words = (*DIGITS, "task._target_=scaled_task.Scaled", "allow_targets=[scaled_task]", "duration=10")
    whole, resumed = whole_and_resumed(train, monkeypatch, words, stop_at=5)
    assert rows(whole) == rows(resumed)
    assert_same_state(saved(whole, "training"), saved(resumed, "training"))
    assert float(saved(whole, "training")["task"]["count"]) == 10
    capsys.readouterr()
    tuned = train(*words, "duration=1", "optimizer.lr=0", f"init_from={whole}", name="tuned")
    temperatures = [saved(run, "training")["task"]["temperature"] for run in (whole, tuned)]
    assert float(temperatures[0]) == float(temperatures[1]) != 1
    assert "weights of the task itself from" in capsys.readouterr().out
    plain = train(*DIGITS, "duration=1", name="plain")
    anew = train(*words, "duration=1", "optimizer.lr=0", f"init_from={plain}", name="anew")
    assert float(saved(anew, "training")["task"]["temperature"]) == 1
    assert "begun anew: temperature" in capsys.readouterr().out


def test_resume_from_another_run_or_its_weights_only_and_to_no_older_checkpoint_of_the_run(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    words, older = (*DIGITS, "duration=8", "keep_last=9"), "outputs/first/checkpoints/update_00000004"
    first = train(*words, name="first")
    again = train(*DIGITS, "duration=8", f"resume={older}", name="again")
    assert rows(first) == rows(again)
    assert_same_state(saved(first, "training"), saved(again, "training"))
    tuned = train(*DIGITS, "duration=4", "optimizer.lr=0", f"init_from={first}", name="tuned")
    assert_same_state(saved(tuned, "model"), saved(first, "model"))
    assert rows(tuned)[0]["num_updates"] == 0
    train(*words, f"resume={older}", name="first", status=2)
    message = f"resume: this run continues from its own update_00000008, not from {older}"
    assert message in capsys.readouterr().err
    train(*words, "resume=outputs/first/checkpoints/last", name="first")


def test_a_run_that_continues_another_copies_its_best_checkpoint(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other run is finished, and its best checkpoint is not its newest."""
    words = (*DIGITS, "duration=8", "optimizer=sgd", "optimizer.lr=9", "keep_last=1", "save_every=8")
    first = train(*words, name="first")
    best = summary(first)["best"]
    assert best["num_updates"] < 8
    again = train(*words, f"resume={first}", name="again")
    assert rows(first) == rows(again)
    for link, num_updates in (("last", 8), ("best", best["num_updates"])):
        assert (again / "checkpoints" / link).resolve().name == f"update_{num_updates:08d}"
        assert_same_state(saved(first, "model", link), saved(again, "model", link))
    assert summary(again)["best"] == best
    (first / "checkpoints" / f"update_{best['num_updates']:08d}").rename(first / "elsewhere")
    third = train(*words, f"resume={first}", name="third")
    assert "the best checkpoint so far" in capsys.readouterr().out
    assert not (third / "checkpoints" / "best").is_symlink()
    other_samples = ("duration=9", "eval_every=null", "limit_val_samples=100", "resume_strict=false")
    assert not (train(*words, *other_samples, name="again") / "checkpoints" / "best").is_symlink()


def test_a_run_with_checkpoints_does_not_continue_another(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*DIGITS, "duration=8", name="other")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        train(*DIGITS, "duration=8", status=130)
    train(*DIGITS, "duration=8", "resume=outputs/other", status=2)
    assert (
        "this run continues from its own update_00000002, not from outputs/other" in capsys.readouterr().err
    )
    with monkeypatch.context() as patch:  # the same command again continues a run that began from another
        interrupt_at(patch, 6)
        from_other = ("duration=8", "resume=outputs/other/checkpoints/update_00000004")
        train(*DIGITS, *from_other, name="third", status=130)
    train(*DIGITS, *from_other, name="third")
