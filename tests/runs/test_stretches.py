"""What a run's record says about the configs that trained it, if it continued with another one."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from marks import of_extension, slow
from run_folders import assert_same_state, rows, summary, training, weights
from training_runs import Train, interrupt_at

from hydrant import cli
from hydrant.runs import execute, reporter
from hydrant.runs.job import write_records

SHORT = ("tracker=local", "model.hidden=[4]", "log_every=1", "eval_every=2", "save_every=2", "scheduler=constant",
         "optimizer.lr=0.001")  # fmt: skip
LONGER = ("resume_strict=false", "duration=6", "optimizer.lr=0.5")


def files(folder: Path) -> dict[Path, bytes]:
    """Return all files of a run but its log."""
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "train.log"}


def config_of(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "config.yaml").read_text())


def stretch(begin: int, end: int | None, duration: int, lr: float) -> dict[str, Any]:
    return {"begin": begin, "end": end, "config": {"duration": duration, "optimizer.lr": lr}}


TWO = [stretch(0, 4, 4, 0.001), stretch(4, None, 6, 0.5)]


@pytest.fixture
def folder(train_once: Train) -> Path:
    """The folder of a finished run of four updates."""
    return train_once(*SHORT, "duration=4")


@pytest.mark.parametrize(
    "words",
    [
        ("optimizer.lr=0.5",),
        *slow((("optimizer.lr=0.5", "duration=3"),)),  # known only when the config is prepared
        ("optimizer.lr=0.5", "duration=16sa", "global_batch_size=4"),  # four updates
        ("test_at_end=true", "data.test_ratio=0", "seed=1"),
        *slow((("patience=9", "optimizer.lr=0.5"),)),
    ],
)
def test_a_config_that_trains_no_update_does_not_become_the_record(
    words: tuple[str, ...], folder: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(folder)
    train(*SHORT, "duration=4", *words, "resume_strict=false", status=2)
    assert "resume: outputs/run holds a run of another config" in capsys.readouterr().err.splitlines()[-1]
    assert files(folder) == before
    train(*SHORT, "duration=4", *words, f"resume={folder}", "resume_strict=false", name="copy", status=2)
    assert not (folder.parent / "copy").exists()


def test_a_run_that_patience_has_ended_has_no_update_left(train: Train) -> None:
    words = ("duration=40", "patience=1", "optimizer.lr=0")
    folder = train(*SHORT, *words)
    assert summary(folder)["num_updates"] < 40
    before = files(folder)
    train(*SHORT, *words, "optimizer.weight_decay=0.5", "best.mode=min", "resume_strict=false", status=2)
    assert files(folder) == before


@pytest.mark.usefixtures("folder")
def test_a_refusal_does_not_offer_what_is_refused(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    for words, offer in ((("seed=1",), "longer duration"), (("test_at_end=true",), "resume_strict=false (")):
        train(*SHORT, "duration=4", *words, status=2)
        assert offer in capsys.readouterr().err.splitlines()[-1]


def test_the_record_says_what_trained_each_stretch(folder: Path, train: Train) -> None:
    assert "stretches" not in summary(folder)
    train(*SHORT, *LONGER)
    assert summary(folder)["stretches"] == TWO
    assert config_of(folder)["optimizer"]["lr"] == 0.5
    assert [row["optim/lr"] for row in rows(folder) if "optim/lr" in row] == [0.001] * 4 + [0.5] * 2
    train(*SHORT, *LONGER)  # it is finished
    assert summary(folder)["stretches"] == TWO

    longer = train(*SHORT, *LONGER, "duration=8", "seed=1", f"resume={folder}", name="longer")
    first, second, third = summary(longer)["stretches"]
    assert (first["config"], first["end"]) == ({"duration": 4, "optimizer.lr": 0.001, "seed": 0}, 4)
    assert (second["config"], second["end"]) == ({"duration": 6, "optimizer.lr": 0.5, "seed": 0}, 6)
    assert (third["config"], third["end"]) == ({"duration": 8, "optimizer.lr": 0.5, "seed": 1}, None)
    same = train(*SHORT, *LONGER, f"resume={folder}", name="same")
    assert summary(same)["stretches"] == TWO


def test_the_values_of_groups_and_of_removed_schedules_apply_from_there_on(train: Train) -> None:
    head = "+param_groups.patterns.head={match: classifier, weight_decay: 0.2}"
    words = ("optimizer.weight_decay=0.1", head)
    train(*SHORT, *words, "+scheduler@schedules.weight_decay=linear", "duration=4")
    folder = train(*SHORT, *LONGER, *words, "param_groups.patterns.head.weight_decay=0.7")
    groups = training(folder)["optimization"]["optimizers"]["main"]["param_groups"]
    assert sorted({(group["lr"], group["weight_decay"]) for group in groups}) == [(0.5, 0.1), (0.5, 0.7)]


@pytest.mark.extension  # the optimizer
def test_what_an_optimizer_counts_in_its_groups_goes_on_with_a_changed_config(train: Train) -> None:
    words = (*SHORT, "optimizer=schedule_free_adamw")
    whole = train(*words, "duration=6", name="whole")
    train(*words, "duration=4")
    assert_same_state(weights(train(*words, "duration=6", "resume_strict=false")), weights(whole))


def test_a_run_that_goes_back_forgets_the_stretch_that_it_gave_up(train: Train) -> None:
    folder = train(*SHORT, "duration=4", "keep_last=9")
    train(*SHORT, *LONGER, "keep_last=9")
    [broken] = folder.glob("checkpoints/update_00000006/model.safetensors")
    broken.write_bytes(b"")
    train(*SHORT, *LONGER, "duration=9", "keep_last=9")  # continues from update 4
    assert summary(folder)["stretches"] == [stretch(0, 4, 4, 0.001), stretch(4, None, 9, 0.5)]


def test_what_changes_no_weights_is_no_stretch(folder: Path, train: Train) -> None:
    train(*SHORT, "duration=6", "resume_strict=false", "log_every=2", "eval_every=1")
    assert [sorted(part["config"]) for part in summary(folder)["stretches"]] == [["duration"]] * 2
    words = (*SHORT, "duration=4", "data.test_ratio=0.1")
    folder = train(*words, name="tested")
    train(*words, "test_at_end=true", "resume_strict=false", name="tested")
    assert "test/loss" in rows(folder)[-1]
    assert "stretches" not in summary(folder)
    assert config_of(folder)["test_at_end"] is True


# A killed process closes nothing.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("is_written", "again"), [(False, "new"), (False, "old"), (True, "new")])
def test_a_kill_before_or_after_the_config_is_written_loses_no_stretch(
    is_written: bool, again: str, folder: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(job: Any, *arguments: Any) -> None:
        if is_written:
            write_records(job, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reporter, "write_records", killed)
        train(*SHORT, *LONGER, status=130)
    assert config_of(folder)["optimizer"]["lr"] == (0.5 if is_written else 0.001)
    if again == "new":
        train(*SHORT, *LONGER)
        assert summary(folder)["stretches"] == TWO
    else:  # nothing was trained with the other config
        train(*SHORT, "duration=4")
        assert summary(folder).get("stretches", []) == []


@pytest.mark.parametrize(
    ("words", "change", "field", "value"),
    [
        ((), "optimizer.weight_decay=0.5", "weight_decay", 0.5),
        (("+scheduler@schedules.betas.0=constant",), "optimizer.betas=[0.9,0.5]", "betas", (0.9, 0.5)),
    ],
)
def test_a_changed_config_holds_although_its_first_start_saved_nothing(
    words: tuple[str, ...], change: str, field: str, value: Any, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*SHORT, *words, "duration=4")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        folder = train(*words, status=130)
    for train_loop in (None, execute.train):  # the first start fails at once
        monkeypatch.setattr(execute, "train", train_loop)
        train(*words, change, "resume_strict=false", status=0 if train_loop else 1)
    [group] = training(folder)["optimization"]["optimizers"]["main"]["param_groups"]
    assert group[field] == value
    assert (folder / "train.log").read_text().count(
        f"continues with another config: {change.split('=')[0]}"
    ) == 2


@pytest.mark.parametrize("launcher", [*slow("basic"), *of_extension("stacked")])
def test_a_finished_sweep_with_another_config_is_refused_and_a_longer_one_recorded(
    launcher: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--multirun", "name=study", f"hydra/launcher={launcher}", "seed=0,1", *SHORT,
             "hydra.sweep.subdir=${seed}"]  # fmt: skip
    folder = workdir / "multirun" / "study"
    assert cli.main([*words, "duration=4"]) == 0
    before = files(folder)
    for strict in ("true", "false"):
        assert cli.main([*words, "duration=4", "optimizer.lr=0.5", f"resume_strict={strict}"]) == 2
        assert "2 of 2 jobs cannot run" in capsys.readouterr().err.splitlines()[-1]
    assert files(folder) == before
    assert cli.main([*words, *LONGER]) == 0, capsys.readouterr().err
    assert [summary(folder / seed)["stretches"] for seed in "01"] == [TWO, TWO]


def test_updates_keep_the_batch_sizes_that_they_had(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """Epochs and positions in the data are counted by the sizes of all updates."""
    short = ("tracker=local", "model.hidden=[4]", "eval_every=null", "log_every=1")
    folder = train(*short, "duration=4", "global_batch_size=50")
    before = files(folder)
    train(*short, "duration=8", "resume_strict=false", "global_batch_size=100", status=2)
    sizes = "global_batch_size={0: 50, 4: 100}"
    assert capsys.readouterr().err.rstrip().endswith(f"keep them: '{sizes}'")
    assert files(folder) == before
    train(*short, "duration=8", "resume_strict=false", sizes)
    assert rows(folder)[-1]["epoch"] == pytest.approx((4 * 50 + 4 * 100) / 1437)
    train(*short, "duration=9", "resume_strict=false", "global_batch_size=100", status=2)
    assert "'global_batch_size={0: 50, 4: 100, 8: 100}'" in capsys.readouterr().err


def test_all_samples_are_as_many_as_they_were(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    short = ("tracker=local", "model.hidden=[4]", "eval_every=null", "resume_strict=false")
    train(*short, "duration=2", "global_batch_size=all", "limit_train_samples=40")
    changed = (*short, "duration=3", "global_batch_size=all", "limit_train_samples=30")
    train(*changed, status=2)
    assert "'global_batch_size={0: 40, 2: 30}'" in capsys.readouterr().err
    train(*changed, "resume_strict=true", status=2)
    assert "global_batch_size" not in capsys.readouterr().err
