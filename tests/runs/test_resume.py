"""Where a run starts: its own checkpoint, another run's, a changed config, damaged checkpoints, initial weights."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
import yaml
from huggingface_hub.errors import LocalEntryNotFoundError
from run_folders import assert_same_state, rows, saved_updates, summary, training, weights
from safetensors.torch import load_file, save_file
from training_runs import Train, interrupt_at

from hydrant import cli
from hydrant.clock import Interval
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.flat import key_tables
from hydrant.errors import ConfigError, RecordError
from hydrant.runs.execute import continued_state
from hydrant.runs.folder import REPLACED, RunFolder
from hydrant.runs.record import RunRecord
from hydrant.runs.resume import Start, changed_keys, starting_point
from hydrant.training.checkpoint import storage
from hydrant.training.checkpoint.folder import MANIFEST, write_text
from hydrant.training.checkpoint.storage import SavedCheckpoint
from hydrant.training.checkpoint.weights import Weights
from hydrant.training.saved_run import saved_identity
from hydrant.training.trainer import EarlyStopping

SHORT = ("tracker=local", "model.hidden=[16]", "duration=8", "log_every=1", "eval_every=4", "save_every=2",
         "keep_last=9")  # fmt: skip


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return check(compose(["tracker=local", "name=run"]))


@pytest.fixture
def checkpointed_run(config: dict[str, Any], tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """A config, and a run folder with this config and a checkpoint of update 2."""
    folder = tmp_path / "run"
    checkpoint = folder / "checkpoints" / "update_00000002"
    checkpoint.mkdir(parents=True)
    files = {"training.json": write_text(checkpoint / "training.json", "{}")}
    write_text(checkpoint / MANIFEST, json.dumps({"num_updates": 2, "is_best": False, "files": files}))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return config, folder


def test_a_run_starts_from_its_folder_or_from_another_run(
    checkpointed_run: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    config, folder = checkpointed_run
    checkpoint, empty = folder / "checkpoints" / "update_00000002", tmp_path / "empty"

    fresh = starting_point(config, empty)
    assert (fresh.checkpoint, fresh.weights, fresh.is_finished) == (None, None, False)
    assert starting_point(config | {"resume": None}, empty) == fresh
    assert starting_point(config, folder).checkpoint == SavedCheckpoint(checkpoint)
    assert starting_point(config | {"resume": str(folder)}, empty).checkpoint == SavedCheckpoint(checkpoint)
    assert starting_point(config | {"init_from": str(folder)}, empty).weights == Weights(checkpoint)
    assert starting_point(config | {"init_from": str(folder)}, empty).checkpoint is None
    other = config | {"seed": 1, "resume_strict": False}
    for resume, where in (("auto", folder), (str(folder), empty)):
        start = starting_point(other | {"resume": resume}, where)
        assert (start.checkpoint, start.changes) == (SavedCheckpoint(checkpoint), {"seed": (0, 1)})
    # A checkpoint in the run folder takes precedence over `resume`, so the same command continues the run.
    assert starting_point(config | {"resume": str(folder)}, folder).checkpoint == SavedCheckpoint(checkpoint)

    for status, is_finished in {
        "running": False,
        "failed": False,
        "preempted": False,
        "finished": True,
    }.items():
        (folder / "summary.json").write_text(json.dumps({"status": status, "num_updates": 2}))
        assert starting_point(config, folder).is_finished is is_finished
        longer = config | {"duration": 9, "resume_strict": False}
        assert not starting_point(longer, folder).is_finished  # the changed config may train for longer
        if is_finished:
            with pytest.raises(ConfigError, match=r"no update left: seed \(0 there, 1 here\)"):
                starting_point(other | {"duration": config["duration"]}, folder)


def test_contradictory_starting_points_are_refused(
    checkpointed_run: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    config, folder = checkpointed_run
    wrong = [
        (config | {"resume": None}, folder),
        (config | {"init_from": str(folder)}, folder),
        (config | {"init_from": str(folder), "resume": str(folder)}, tmp_path / "empty"),
        (config | {"seed": 1}, folder),
        (config | {"seed": 1, "resume": str(folder)}, tmp_path / "empty"),
        (config | {"resume": str(tmp_path / "nowhere")}, tmp_path / "empty"),
        (config | {"init_from": str(tmp_path / "nowhere")}, tmp_path / "empty"),
    ]
    for refused, where in wrong:
        with pytest.raises(ConfigError, match=r"resume|init_from"):
            starting_point(refused, where)
    assert not (tmp_path / "empty").exists()


def test_a_run_that_ended_without_a_checkpoint_is_replaced_by_one_of_another_config(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("a typo")

    short = ("tracker=local", "model.hidden=[4]", "duration=1", "save_every=null", "eval_every=null")
    with monkeypatch.context() as patch:
        patch.setattr("hydrant.training.compilation.Compilation.begin", fail)
        assert summary(train(*short, status=1))["status"] == "failed"
    folder = train(*short, "seed=1")
    assert (summary(folder)["status"], summary(folder)["error"]) == ("finished", None)
    assert "ValueError: a typo" in (folder / "train.log").read_text()


@pytest.fixture(scope="module")
def first_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("first"))
        assert cli.main(["train", "name=whole", *SHORT]) == 0
        interrupt_at(patch, 6)
        assert cli.main(["train", "name=stopped", *SHORT]) == 130
        return Path("outputs").resolve()


@pytest.fixture
def stopped_run(first_runs: Path, workdir: Path) -> Path:
    """The folder of a run that was stopped after update 6, a copy for each test. `first_runs` has the whole one."""
    return Path(shutil.copytree(first_runs / "stopped", workdir / "outputs" / "stopped", symlinks=True))


def test_a_run_continues_from_an_older_checkpoint_if_the_newest_is_damaged(
    stopped_run: Path, train: Train, first_runs: Path
) -> None:
    flip(stopped_run / "checkpoints" / "update_00000006" / "training.safetensors")
    train(*SHORT, name="stopped")
    log = (stopped_run / "train.log").read_text()
    assert "update_00000006/training.safetensors does not have the SHA-256 of its manifest" in log
    assert "continuing from outputs/stopped/checkpoints/update_00000004 at update 4" in log
    assert (stopped_run / "checkpoints" / "damaged_update_00000006").is_dir()
    whole = first_runs / "whole"
    assert rows(stopped_run) == rows(whole)
    assert_same_state(weights(stopped_run), weights(whole))
    assert_same_state(training(stopped_run), training(whole))


def test_a_run_with_only_damaged_checkpoints_is_refused(
    stopped_run: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (stopped_run / "checkpoints").glob("update_*"):
        (path / "model.safetensors").unlink()
    train(*SHORT, name="stopped", status=1)
    assert (
        "error: all checkpoints in outputs/stopped/checkpoints are damaged: "
        in capsys.readouterr().err.replace(f"{stopped_run.parents[1]}/", "")
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: 1\nb: \xff", "line 2 is no text in UTF-8"),
        (b"a: ${", "a: '${' is not resolved"),
        (b"a: ${oc.env:HOME}", "is not resolved"),
        (b"[" * 60, "nested more than 50 levels"),
        (b"- 1", "Expected `object`"),
        (b"x: &x [*x]", "that aliases repeat"),
    ],
)
def test_a_damaged_config_of_a_run_is_named(
    content: bytes, reason: str, checkpointed_run: tuple[dict[str, Any], Path]
) -> None:
    config, folder = checkpointed_run
    (folder / "config.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        starting_point(config, folder)
    assert f"{folder / 'config.yaml'} is damaged (" in str(refused.value)
    assert reason in str(refused.value)


def test_a_run_of_an_earlier_version_has_other_keys_where_some_were_added_or_removed_since(
    checkpointed_run: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = checkpointed_run
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    data = {"_target_": "hydrant.data.tensors", "train": "t.pt"}
    earlier = {key: value for key, value in saved.items() if key not in ("cudnn_benchmark", "memory_format")}
    (folder / "config.yaml").write_text(yaml.safe_dump(earlier | {"data": data | {"outdated": 1}}))
    monkeypatch.setitem(key_tables()["removed"], "hydrant.data.tensors", ["outdated"])
    here = config | {"data": data | {"class_names": None, "extra_val": {}, "test": None}}
    assert changed_keys(here, RunFolder(folder)) == {}
    assert changed_keys(
        here | {"memory_format": "channels_last", "resume_strict": False}, RunFolder(folder)
    ) == {"memory_format": ("auto", "channels_last")}


@pytest.mark.extension
def test_a_run_of_an_earlier_version_is_evaluated_although_its_optimizers_lack_a_key(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(
        "tracker=local", "experiment=two_models", "optimizer=torch_muon", "duration=2", name="earlier"
    )
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    settings = [saved, *saved["optimizers"].values()]
    assert [chosen["optimizer"].pop("fused") for chosen in settings] == [None, None, None]
    (folder / "config.yaml").write_text(yaml.safe_dump(saved))
    assert cli.main(["evaluate", str(folder)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in REPLACED if name != "config.yaml"])
def test_no_file_that_a_run_replaces_may_be_of_the_user(name: str, config: Any, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=f"{name} is of no run, and this run would replace it"):
        starting_point(config, tmp_path)


def test_a_file_that_no_run_wrote_is_kept(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    (folder := Path("outputs/mine")).mkdir(parents=True)
    for name in ("config.yaml", "metrics.jsonl", "histograms.jsonl"):
        (file := folder / name).write_text("mine: 1\n")
        train(*SHORT, name="mine", status=2)
        message = f"outputs/mine/{name} is of no run, and this run would replace it; move it"
        assert message in capsys.readouterr().err
        assert [*folder.iterdir()] == [file]
        assert file.read_text() == "mine: 1\n"
        file.rename(name)
    train(*SHORT, name="mine")


def test_a_run_that_was_killed_while_it_opened_its_record_starts_again(
    train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = workdir / "outputs" / "killed"

    def open_record(*arguments: Any) -> RunRecord:
        record = RunRecord(*arguments)
        shutil.copytree(folder, workdir / "left")  # what a kill leaves here
        return record

    with monkeypatch.context() as patch:
        patch.setattr("hydrant.runs.reporter.RunRecord", open_record)
        train(*SHORT, name="killed")
    shutil.rmtree(folder)
    (workdir / "left").rename(folder)
    assert (folder / "metrics.jsonl").exists()
    assert not (folder / "summary.json").exists()
    train(*SHORT, name="killed")
    assert summary(folder)["status"] == "finished"


def test_a_summary_of_only_a_status_is_damaged(checkpointed_run: tuple[dict[str, Any], Path]) -> None:
    config, folder = checkpointed_run
    (folder / "summary.json").write_text('{"status": "finished"}')
    with pytest.raises(
        RecordError, match=r"summary\.json is damaged \(Object missing .*`num_updates`\); remove"
    ):
        starting_point(config, folder)


def test_a_torn_last_row_does_not_stop_the_resume_and_a_damaged_best_checkpoint_is_logged(
    stopped_run: Path, train: Train, first_runs: Path
) -> None:
    with (stopped_run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"num_updates": 7, "train/\xff\x00\xfe')
    best = summary(stopped_run)["best"]["num_updates"]
    assert best < 6
    flip(stopped_run / "checkpoints" / "best" / "model.safetensors")
    train(*SHORT, name="stopped")
    assert rows(stopped_run) == rows(first_runs / "whole")
    log = (stopped_run / "train.log").read_text()
    assert "the best checkpoint so far is damaged: " in log
    assert f"update_{best:08d}/model.safetensors does not have the SHA-256" in log


def test_a_run_continues_with_a_changed_config_if_allowed(
    stopped_run: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = ("resume_strict=false", "optimizer.lr=0.5", "optimizer.weight_decay=0.25", "duration=10")
    train(*SHORT, *changed, name="stopped")
    output = capsys.readouterr().out
    assert "duration ('8' there, 10 here)" in output or "duration (8 there, 10 here)" in output
    assert "optimizer.weight_decay (0.01 there, 0.25 here)" in output
    assert "the run continues with another config: " in output
    [group] = training(stopped_run)["optimization"]["optimizers"]["main"]["param_groups"]
    assert group["weight_decay"] == 0.25
    assert 0 < group["lr"] < 0.5  # a value at the end of the new schedule
    assert summary(stopped_run)["num_updates"] == 10
    train(*SHORT, *changed, "duration=12", name="stopped")  # finished, then continued for longer
    assert [row["num_updates"] for row in rows(stopped_run)] == list(range(13))


def test_an_average_that_a_run_gains_begins_with_the_weights_of_the_checkpoint(
    stopped_run: Path, train: Train
) -> None:
    average = ("averaging=ema", "averaging.decay=0.5", "averaging.warmup=false", "resume_strict=false")
    train(*SHORT, *average, "save_every=1", name="stopped")
    w6, w7, w8 = (weights(stopped_run, f"update_{update:08d}") for update in (6, 7, 8))
    for name, value in weights(stopped_run, part="ema").items():
        torch.testing.assert_close(value, 0.25 * w6[name] + 0.25 * w7[name] + 0.5 * w8[name])
    assert "update_00000006 holds no average, so it begins with" in (stopped_run / "train.log").read_text()


@pytest.mark.parametrize("is_killed_at_once", [False, True])
@pytest.mark.parametrize(
    ("words", "better"), [(("best.metric=val/loss",), min), (("best.mode=min",), min)], ids=["metric", "mode"]
)
def test_another_deciding_metric_judges_all_evaluations_anew(
    words: tuple[str, ...],
    better: Callable[..., float],
    is_killed_at_once: bool,
    stopped_run: Path,
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The best accuracy so far, as a number, is less than any later loss."""
    words = (*SHORT, "best.metric=val/accuracy", *words, "resume_strict=false")
    if is_killed_at_once:  # it has written its config, but no checkpoint
        with monkeypatch.context() as patch:
            patch.setattr("hydrant.runs.execute.train", lambda trainer: 1 / 0)
            train(*words, name="stopped", status=1)
    train(*words, name="stopped")
    metric = "val/loss" if "best.metric=val/loss" in words else "val/accuracy"
    values = {
        row["num_updates"]: row[metric] for row in rows(stopped_run) if row["num_updates"] and metric in row
    }
    best = summary(stopped_run)["best"]
    assert (best["metric"], best["value"]) == (metric, better(values.values()))
    assert values[best["num_updates"]] == best["value"]
    assert Path(stopped_run, "checkpoints", "best").resolve().name == f"update_{best['num_updates']:08d}"


@pytest.mark.parametrize(("mode", "num_updates"), [("max", 4), ("min", 2)])
def test_the_best_evaluation_is_judged_by_the_mode_of_the_checkpoint(
    mode: str, num_updates: int, stopped_run: Path
) -> None:
    """Its config does not tell it: a run that was killed has replaced that."""
    lines = rows(stopped_run)
    lines[2]["val/accuracy"] = 0.001  # less than at update 4
    (stopped_run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    checkpoint = SavedCheckpoint(stopped_run / "checkpoints" / "update_00000006")
    judged = EarlyStopping("val/accuracy", mode, None, Interval(4))
    plan: Any = SimpleNamespace(early_stopping=judged, identity=saved_identity(checkpoint))
    best = continued_state(plan, Start(RunFolder(stopped_run), checkpoint), checkpoint).best
    assert best is not None
    assert best["num_updates"] == num_updates


def test_a_finished_run_without_a_checkpoint_is_not_repeated(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*SHORT, "save_every=null", "duration=1")
    folder = train(*words, name="finished")
    before = (folder / "metrics.jsonl").read_bytes()
    train(*words, name="finished")
    assert "already finished" in capsys.readouterr().out
    for strict in ("true", "false"):
        train(*words, "duration=2", f"resume_strict={strict}", name="finished", status=2)
        error = capsys.readouterr().err.splitlines()[-1]
        assert "resume: " in error
        assert (
            "holds a finished run of another config (duration (1 there, 2 here)) and no checkpoint" in error
        )
    assert (folder / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["model.hidden=[32]"],
            "resume: the weights in .* belong to another model: hidden.0.0.weight is (16, 64) in the file",
        ),
        (["optimizer=sgd"], "has the optimizers main: AdamW; here are main: SGD"),
        (
            ["param_groups.no_decay=true"],
            "AdamW has model..* in group 0 there where this run has model..* in group ",
        ),
        (["+optimizers.all.parts=null"], "has the optimizers main: AdamW; here are all: AdamW"),
        (["scheduler=plateau"], "does not fit this run: KeyError: 'main.lr'"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_without_resume_strict(
    words: list[str], message: str, stopped_run: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    status = 1 if words == ["scheduler=plateau"] else 2
    before = {path: path.read_bytes() for path in (stopped_run / "checkpoints").rglob("*") if path.is_file()}
    train(*SHORT, *words, "resume_strict=false", name="stopped", status=status)
    last = capsys.readouterr().err.splitlines()[-1]
    assert all(part in last for part in message.split(".*"))
    assert {path: path.read_bytes() for path in before} == before


SWAPPING = """from torch import nn
class Net(nn.Sequential):
    def __init__(self, names):
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(64, 64))
        self.out = nn.Linear(64, 10)
    def forward(self, x):
        return self.out(self.b(self.a(x.flatten(1))))
"""


def test_layers_that_are_made_in_another_order_are_named(
    train: Train, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "swapping.py").write_text(SWAPPING)
    parts = ("hidden", "dropout", "input_shape", "num_classes")
    words = ("tracker=local", "eval_every=null", "model._target_=swapping.Net", *(f"~model.{part}" for part in parts),
             "allow_targets=[swapping]", "resume_strict=false")  # fmt: skip
    train(*words, "duration=1", "+model.names=[a,b]", name="net")
    train(*words, "duration=2", "+model.names=[b,a]", name="net", status=2)
    error = capsys.readouterr().err.splitlines()[-1]
    assert "AdamW has model.a.weight in group 0 there where this run has model.b.weight in group 0" in error
    assert "the code makes layers in another order" in error


def test_initial_weights_from_a_file(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    start = ("duration=1", "optimizer=sgd", "optimizer.lr=0", "save_every=1", "eval_every=null")
    first = train(*SHORT, "duration=2", name="first")
    file = first / "checkpoints" / "last" / "model.safetensors"
    copied = train(*SHORT, *start, f"init_from={file}", name="copied")
    assert_same_state(weights(copied), weights(first))

    wider = (*SHORT, *start, "model.hidden=[16,8]", f"init_from={file}")
    train(*wider, name="wider", status=2)
    refused = capsys.readouterr().err.splitlines()[-1]
    assert "init_from: the weights in" in refused
    assert "classifier.weight is (10, 16) in the file, (10, 8) in the model" in refused
    partly = train(*wider, "init_strict=false", name="wider")
    output = capsys.readouterr().out
    [line] = [line for line in output.splitlines() if "not loaded from" in line]
    assert "hidden.1.0.bias is absent in the file, (8,) in the model" in line
    assert "classifier.weight is (10, 16) in the file, (10, 8) in the model" in line
    fresh = train(*SHORT, *start, "model.hidden=[16,8]", name="fresh")
    kept = {name: value for name, value in weights(partly).items() if name.startswith("hidden.0.")}
    assert_same_state(kept, {name: weights(first)[name] for name in kept})
    assert_same_state(weights(partly)["classifier.weight"], weights(fresh)["classifier.weight"])

    save_file({"other": torch.ones(1)}, "other.safetensors")
    train(*SHORT, *start, "init_from=other.safetensors", "init_strict=false", name="other", status=2)
    assert "init_from: none of the weights in" in capsys.readouterr().err
    Path("weights.pt").touch()
    train(*SHORT, *start, "init_from=weights.pt", name="other", status=2)
    assert "init_from: weights.pt is not a safetensors file; give one, or a run or" in capsys.readouterr().err
    Path("junk.safetensors").write_text("junk")
    train(*SHORT, *start, "init_from=junk.safetensors", name="other", status=1)
    assert "junk.safetensors cannot be read (" in capsys.readouterr().err


TIMM = ("tracker=local", "model=timm", "model.name=test_vit", "data=synthetic", "data.input_shape=[3,160,160]",
        "data.num_classes=10", "data.num_samples=4", "data.num_val_samples=2", "global_batch_size=2", "duration=1",
        "optimizer=sgd", "optimizer.lr=0", "eval_every=null", "save_every=1",
        "init_from=timm:test_vit.r160_in1k")  # fmt: skip


@pytest.mark.slow
def test_initial_weights_from_timm(
    train: Train, monkeypatch: pytest.MonkeyPatch, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(3)
    save_file(timm.create_model("test_vit").state_dict(), workdir / "hub.safetensors")

    def download(*_: Any, **__: Any) -> str:
        return str(workdir / "hub.safetensors")

    monkeypatch.setattr("timm.models._hub.hf_hub_download", download)
    train(*TIMM, status=2)
    assert "head.weight is (1000, 64) in the file, (10, 64) in the model" in capsys.readouterr().err
    folder = train(*TIMM, "init_strict=false")
    pretrained = load_file(workdir / "hub.safetensors")
    loaded = {name: value for name, value in weights(folder).items() if not name.startswith("head.")}
    assert_same_state(loaded, {name: pretrained[name] for name in loaded})
    assert "not loaded from timm:test_vit.r160_in1k: head." in capsys.readouterr().out

    def offline(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("Cannot find the file on the Hub. Check your connection.")

    monkeypatch.setattr("timm.models._hub.hf_hub_download", offline)
    train(*TIMM, name="offline", status=2)
    message = "init_from: timm cannot load test_vit.r160_in1k's weights: Cannot find the file on the Hub"
    assert message in capsys.readouterr().err
    assert cli.main(["train", *TIMM, "init_from=timm:test_vitt"]) == 2
    assert "init_from: unknown timm model 'test_vitt'; did you mean 'test_vit'" in capsys.readouterr().err


def test_training_continues_when_the_disk_is_full(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = storage.save_file

    def full_disk(tensors: Any, file: Path, entry: Any) -> None:
        if file.parent.name > ".update_00000002":
            raise OSError(28, "No space left on device")
        save(tensors, file, entry)

    monkeypatch.setattr(storage, "save_file", full_disk)
    folder = train(*SHORT, "eval_every=8", status=1)
    assert len(rows(folder)) == 9
    assert (folder / "train.log").read_text().count("training continues") == 1
    assert (summary(folder)["status"], summary(folder)["error"]["type"]) == ("failed", "CheckpointError")
    assert saved_updates(folder / "checkpoints") == [2]
    last = (
        "update_00000008 cannot be written: No space left on device; update_00000002 is the newest checkpoint"
    )
    assert last in capsys.readouterr().err.splitlines()[-1]


def test_a_run_continues_with_as_many_samples_and_the_same_classes_or_says_so(
    tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The order of all samples depends on their number; values on other validation samples do not compare."""
    drawn = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 16, generator=drawn)
    everything = {"inputs": inputs, "targets": inputs[:, :3].argmax(1)}
    of_one_class = {"inputs": inputs[:5], "targets": inputs[:5, :3].argmin(1)}

    def put(name: str, content: dict[str, torch.Tensor], count: int) -> None:
        torch.save({key: tensor[:count] for key, tensor in content.items()}, tmp_path / name)

    put("train.pt", everything, 40)
    put("val.pt", everything, 20)
    put("other.pt", of_one_class, 5)
    words = (*SHORT, "data=tensors", f"data.train={tmp_path}/train.pt", "data.input_shape=[16]",
             "data.num_classes=3", "patience=2")  # fmt: skip
    val, names = f"data.val={tmp_path}/val.pt", "data.class_names=[a,b,c]"
    grows = "global_batch_size={0: 8, 1ep: 10}"  # is another schedule for another number of samples
    with monkeypatch.context() as patch:
        interrupt_at(patch, 6)
        folder = train(*words, grows, val, names, name="cut", status=130)
    put("train.pt", everything, 30)
    train(*words, grows, val, names, name="cut", status=2)
    refusal = "data: the number of samples.train was 40 and is now 30; restore the files"
    assert refusal in capsys.readouterr().err
    continued = (*words, f"data.val={tmp_path}/other.pt", "data.class_names=[a,c,b]", "resume_strict=false",
                 "global_batch_size={0: 8, 5: 10}")  # fmt: skip
    train(*continued, name="cut")
    log = (folder / "train.log").read_text()
    assert "the number of samples.train was 40 and is now 30; the run continues with the new samples" in log
    assert "the data have other classes than the run learned: class 1 was 'b' and is now 'c'" in log
    assert "the best val/accuracy is of other validation samples or batches" in log
    assert summary(folder)["num_updates"] == 8  # patience counts from the first update with the new samples
    last = next(row for row in rows(folder) if row["num_updates"] == 8)
    assert summary(folder)["best"]["num_updates"] == 8
    assert summary(folder)["best"]["value"] == last["val/accuracy"]
