"""Hooks of the user: when they are called, what they log, how they end a run, and what they cost."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from hook_parts import HOOKS
from marks import of_extension, slow
from PIL import Image
from run_folders import assert_close_rows, assert_same_state, rows, summary, training, weights
from training_runs import DIGITS, Train, UserModule, run_command, whole_and_resumed

from hydrant import cli, installation
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.training import hooks
from hydrant.training.hooks import HookLog
from hydrant.training.loop import is_over, train_update
from hydrant.training.metrics import Pace
from hydrant.training.prepare.micro_batch import prepare_at_least, scratch_trainer

RUN = (*DIGITS, "allow_targets=[my_hooks]", "duration=6", "log_every=2", "eval_every=3", "save_every=3")


@pytest.fixture(autouse=True)
def _hooks_module(user_module: UserModule, monkeypatch: pytest.MonkeyPatch) -> None:
    user_module("my_hooks", HOOKS)
    monkeypatch.delitem(sys.modules, "my_hooks", raising=False)


def hook(name: str, **arguments: Any) -> str:
    node = {"_target_": f"my_hooks.{name}", **arguments}
    return f"+hooks.{name.lower()}={{{', '.join(f'{key}: {value}' for key, value in node.items())}}}"


def test_each_method_is_called_when_its_name_says(train: Train) -> None:
    train(*RUN, hook("Recorder", every=2))
    assert Path("calls.txt").read_text().splitlines() == [
        "on_start 0", "on_evaluation 0",
        "before_update 2", "after_update 2",
        "on_evaluation 3", "on_checkpoint update_00000003",
        "before_update 4", "after_update 4",
        "before_update 6", "after_update 6", "on_evaluation 6", "on_checkpoint update_00000006",
        "on_end 6",
    ]  # fmt: skip


def test_a_listener_hears_runs_sweeps_and_previews_and_its_errors_end_none(
    train: Train,
    logged_warnings: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It needs no config, and is not saved."""
    calls = list[str]()

    class Listener:
        every = 3

        def __init__(self) -> None:
            calls.append("new")

        def state_dict(self) -> None:
            raise NotImplementedError

        def on_evaluation_batch(self, trainer: Any, batch: Any, outcome: Any) -> None:
            assert len(outcome.predictions) == batch.num_samples

        def after_evaluation(self, trainer: Any, row: Any) -> None:
            calls.append(f"{trainer.state.num_updates} {is_over(trainer)} {'val/accuracy' in row}")

        def after_update(self, trainer: Any, num_updates: int) -> None:
            calls.append(f"{num_updates}")
            raise ValueError("broken")

        def on_result(self, reporter: Any) -> None:
            calls.append(reporter.summary["status"])

        def on_sweep_end(self, folder: Path, runs: Any, mode: str) -> None:
            calls.append(f"{folder.name} {len(runs)} {mode}")
            raise ValueError("broken too")

        def on_preview(self, plan: Any, curves: Any, png: Path) -> None:
            calls.append(f"{plan.clock.total_updates} {list(curves)} {curves['lr'][''][0]}")
            png.touch()

    point = SimpleNamespace(value="my_hooks:Listener", load=lambda: Listener)
    monkeypatch.setattr(
        installation, "entry_points", lambda group: {"mine": point} if "listen" in group else {}
    )
    folder = train(*RUN)
    assert "listeners.mine.after_update: ValueError: broken" in capsys.readouterr().out
    assert calls == ["new", "0 False True", "3", "3 False True", "6", "6 True True", "running"]
    assert training(folder)["hooks"] == {}
    calls.clear()
    train("--multirun", *RUN, "seed=0", name="sweep")
    assert "mine.on_sweep_end: ValueError: broken too" in logged_warnings()
    assert calls[-1] == "sweep 1 max"
    assert cli.main(["preview", *DIGITS, "duration=6", "--png", "schedules.png"]) == 0
    assert calls[-1] == "6 ['lr'] [0, 1, 2, 3, 4, 5]"
    assert "schedules.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("every", "updates"),
    [
        ("5", [5, 10]),
        ("50%", [6, 12]),
        ("[8, 25%, 8]", [3, 8]),
        *slow(("null", list(range(1, 13))), ("160sa", [5, 10]), ("0.1ep", [5, 9])),
    ],
)
def test_the_cadence_is_a_duration(every: str, updates: list[int], train: Train) -> None:
    train(*DIGITS, "allow_targets=[my_hooks]", "duration=12", "eval_every=null", "best.metric=val/loss",
          "best.mode=min", "save_every=null", hook("Recorder", every=every))  # fmt: skip
    called = [line for line in Path("calls.txt").read_text().splitlines() if line.startswith("after_update")]
    assert called == [f"after_update {n}" for n in updates]


def test_what_hooks_log_is_in_the_row_of_its_update_and_in_files(train: Train) -> None:
    """In the order of the config."""
    folder = train(*RUN, hook("Noise", every=3), hook("Logs"))
    by_update = {row["num_updates"]: row for row in rows(folder)}
    assert list(by_update[3])[-2:] == ["noise/num_calls", "noise/next"]
    assert [row["mine/number"] for row in rows(folder) if "mine/number" in row] == [4, 5]
    assert len(by_update) == len(rows(folder))  # one row for each update
    assert by_update[4].keys() >= {"train/loss", "mine/number"}
    assert set(by_update[5]) == {"num_updates", "epoch", "mine/number"}
    assert (folder / "texts/poem/update_00000003.txt").read_text() == "one\ntwo"
    assert (folder / "tables/notes/update_00000003.csv").read_text() == "name,value\na,1\nb,2.5\n"
    with Image.open(folder / "pictures/tensor/update_00000003.png") as picture:
        assert picture.size == (4, 6)
    assert (folder / "pictures/drawn/update_00000003.png").read_bytes() == b"a picture"
    logged = (folder / "train.log").read_text()
    assert logged.count("File name too long; training continues") == 1


def test_a_picture_is_a_tensor_a_figure_an_image_or_a_function(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    for picture in (Figure(), Image.new("RGB", (2, 3)), lambda path: path.write_bytes(b"\x89PNG")):
        hooks.as_draw(picture)(tmp_path / "picture.png")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(TypeError, match="not a str"):
        HookLog().picture("name", "a text")


def test_a_hook_ends_a_run_evaluated_saved_and_finished(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*RUN, "data.test_ratio=0.1")
    folder = train(*words, hook("Ends", at=4))
    assert "finished: 4 updates (4 are enough)" in capsys.readouterr().out
    record = summary(folder)
    assert (record["status"], record["num_updates"], record["end_reason"]) == ("finished", 4, "4 are enough")
    assert rows(folder)[-1].keys() >= {"val/accuracy", "train/loss"}
    assert (folder / "checkpoints" / "last").resolve().name == "update_00000004"
    train(*words, hook("Ends", at=4))
    assert "already finished" in capsys.readouterr().out
    train(*words, hook("Ends", at=4), "test_at_end=true", "resume_strict=false")  # trains nothing
    assert (rows(folder)[-1]["num_updates"], summary(folder)["end_reason"]) == (4, "4 are enough")
    train(*words, hook("Ends", at=9), "resume_strict=false")  # of another config: the hook decides anew
    assert summary(folder)["num_updates"] == 6


def test_what_is_logged_after_an_evaluation_is_in_a_row_of_its_update(train: Train) -> None:
    logged = [row for row in rows(train(*RUN, hook("LogsAfter"))) if "mine/after" in row]
    assert [(row["num_updates"], row["mine/after"]) for row in logged] == [(0, 0), (3, 3), (6, 6)]


def test_a_run_that_ends_after_an_evaluation_saves_its_last_weights(train: Train) -> None:
    folder = train(*RUN, "eval_every=2", "save_every=6", "keep_best=0", hook("LogsAfter", end=4))
    assert (folder / "checkpoints" / "last").resolve().name == "update_00000004"


def test_a_run_that_ends_before_its_first_update_ends_after_it(train: Train) -> None:
    folder = train(*RUN, hook("EndsAtOnce"))
    record = summary(folder)
    assert (record["status"], record["num_updates"], record["end_reason"]) == ("finished", 1, "at once")
    assert [row["num_updates"] for row in rows(folder) if "val/accuracy" in row] == [0, 1]
    assert (folder / "checkpoints" / "last").resolve().name == "update_00000001"


def test_a_run_with_a_stateful_hook_resumes_exactly(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, resumed = whole_and_resumed(train, monkeypatch, (*RUN, hook("Noise", every=2)), stop_at=5)
    assert rows(whole) == rows(resumed)
    assert training(whole)["hooks"]["noise"]["num_calls"] == 3
    assert_same_state(weights(whole), weights(resumed))
    assert_same_state(training(whole)["hooks"], training(resumed)["hooks"])


@pytest.mark.slow
def test_a_stateful_hook_continues_on_two_ranks(train: Train, workdir: Path) -> None:
    words = (*RUN, "log_every=3", "model.dropout=0", hook("Noise", every=2))  # the first part logs its end
    whole = train(*words, name="whole")
    train(*words, hook("Ends", at=3), name="half")
    done = run_command(*words, "name=half", "resume_strict=false", "parallel.num_processes=2", cwd=workdir)
    assert done.returncode == 0, done.stderr
    assert_close_rows(whole, workdir / "outputs" / "half")
    assert_same_state(training(whole)["hooks"], training(workdir / "outputs" / "half")["hooks"])


def calls_of_an_update(*words: str) -> list[str]:
    """Return the file and name of every Python function that a quiet update calls."""
    config = check(compose([*RUN, "log_every=null", "eval_every=null", "save_every=null", *words]))
    calls = list[str]()

    def record(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    with scratch_trainer(prepare_at_least(config, 5)) as trainer:
        trainer.pace = Pace(0, trainer.plan.world.device)
        for _ in range(3):
            train_update(trainer, is_last=False)
        gc.disable()  # callbacks of libraries would be among the calls
        sys.setprofile(record)
        try:
            train_update(trainer, is_last=False)
        finally:
            sys.setprofile(None)
            gc.enable()
    return calls


def test_no_hook_costs_no_call() -> None:
    calls = calls_of_an_update()
    assert len(calls) > 10
    assert not [call for call in calls if call.startswith(hooks.__file__)]
    assert calls_of_an_update(hook("Recorder", every=6)) == calls  # nor does one that is not due
    assert calls_of_an_update(hook("Recorder", every="[6]")) == calls


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((hook("Lightning"),), "hooks.lightning._target_: nothing calls the method on_train_epoch_end of Lightning"),
        ((hook("FewArguments"),), "FewArguments.after_update is called as after_update(trainer, num_updates)"),
        ((hook("HalfState"),), "hooks.halfstate._target_: HalfState needs both state_dict and load_state_dict"),
        ((hook("Unwilling", size=2),), "hooks.unwilling.size: my_hooks.Unwilling refuses it: size is too large"),
        ((hook("Recorder", every="often"),), "hooks.recorder.every: 'often' is not a duration"),
        (("hooks=[freeze]",), "hooks: needs a mapping of keys to values, not a list"),
        *of_extension((("hook=[freezing]",), "hook: no option 'freezing'")),
        *slow(
            ((hook("NoHook"),), "hooks.nohook._target_: NoHook is no hook: it has none of the methods check, on_start"),
            ((hook("Unwilling"),), "hooks.unwilling: my_hooks.Unwilling refuses it: this model is too small"),
            ((hook("Recorder", every="[1ep, often]"),), "hooks.recorder.every: 'often' is not a duration"),
            *of_extension(
                (("hooks.freeze=freeze",), "hooks.freeze: no such hook; choose it first: hook=freeze"),
                (("hook=null",), "hook: no option null"),
            ),
            (("+hooks.freeze=freeze",),
             "hooks.freeze: 'freeze' is not a config with a _target_; choose an option: hook="),
        ),
    ],
)  # fmt: skip
def test_a_wrong_hook_is_refused_before_the_run_starts(
    words: tuple[str, ...], message: str, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*RUN, *words, status=2)
    assert message in capsys.readouterr().err
    assert not Path("outputs/run/metrics.jsonl").exists()


def test_an_option_needs_no_line_that_places_it(train: Train, workdir: Path) -> None:
    (workdir / "conf" / "hook").mkdir(parents=True)
    (workdir / "conf" / "hook" / "mine.yaml").write_text("_target_: my_hooks.Recorder\n")
    train(*RUN, "hook=mine")
    assert Path("calls.txt").exists()


def test_an_error_in_a_hook_fails_the_run_and_names_its_line(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*RUN, hook("BadMetric"), status=1)
    error = capsys.readouterr().err
    assert "log the metric 'number' in a group of the hook's own, such as my_hook/number" in error
    assert "my_hooks.py" in error


@pytest.mark.parametrize(
    "name", ["val/accuracy", "train/loss", "val_ema/x", "test/loss", "optim/lr", "perf/mfu"]
)
def test_a_hook_cannot_write_what_the_run_measures(
    name: str, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(*RUN, hook("Overwrites", key=name), status=1)
    message = f"log the metric '{name}' in a group of the hook's own, such as my_hook/"
    assert message + name.partition("/")[2] in capsys.readouterr().err
    assert 9.0 not in [value for row in rows(folder) for value in row.values()]


def test_any_name_of_a_metric_and_any_reason_can_be_read_again(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(*RUN, hook("OddName"))
    assert "mine/\\udc80\\0" in rows(folder)[-1]
    assert summary(folder)["end_reason"] == "odd \\udc80"
    train(*RUN, hook("OddName"))
    assert "already finished" in capsys.readouterr().out


def test_a_hook_that_raises_generator_exit_fails_the_run(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(*RUN, hook("Raises"), status=1)
    assert "error: GeneratorExit (at " in capsys.readouterr().err
    assert (summary(folder)["status"], summary(folder)["error"]["type"]) == ("failed", "GeneratorExit")
