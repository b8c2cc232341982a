"""The profile of a window of updates counts every phase correctly and does not change the run."""

import json
from collections import Counter
from pathlib import Path

import pytest
from full_disk import file_size_limit
from marks import slow
from ranks import run_on_ranks
from run_folders import assert_same_state, rows, summary, weights
from training_runs import Train, interrupt_at

SHORT = ("tracker=local", "model.hidden=[8]", "model.dropout=0.1", "global_batch_size=32", "duration=8", "log_every=2",
         "eval_every=4", "save_every=null", "limit_val_samples=32")  # fmt: skip
WINDOW = ("profiler=torch", "profiler.wait=1", "profiler.warmup=1", "profiler.active=3")


def traced(folder: Path, name: str = "update_00000002") -> Counter[str]:
    """Return how often each host span occurs in a trace."""
    trace = json.loads((folder / "profile" / f"{name}.pt.trace.json").read_text())
    return Counter(event["name"] for event in trace["traceEvents"] if event.get("ph") == "X")


def table(folder: Path, what: str) -> dict[str, list[str]]:
    """Return the rows of a table by their last cell."""
    header, *lines = (folder / "profile" / f"update_00000002.{what}.txt").read_text().splitlines()
    columns = len(header.split())
    return {cells[-1]: cells[:-1] for cells in (line.split(maxsplit=columns - 1) for line in lines)}


def test_trace_and_table_count_every_phase(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(*SHORT, *WINDOW, "micro_batch_size=8")
    expected = {"data_wait": 12, "forward": 12, "backward": 12, "optimizer": 3, "log": 1, "evaluation": 1}
    spans, phases = traced(folder), table(folder, "phases")
    assert {name: spans[name] for name in expected} == expected
    assert {name: int(cells[-1]) for name, cells in phases.items() if name != "other"} == expected
    assert sum(spans[f"ProfilerStep#{step}"] for step in range(10)) == 3
    milliseconds, shares = ([float(c[i].rstrip("%")) for c in phases.values()] for i in (0, 2))
    assert min(milliseconds) > 0
    assert sum(shares) == pytest.approx(100, abs=0.5)
    kernels = (folder / "profile" / "update_00000002.kernels.txt").read_text().splitlines()
    [product] = [line.split() for line in kernels if line.split()[:1] == ["aten::mm"]]
    assert int(product[-1]) > 12
    output = capsys.readouterr().out
    assert "profile of 3 updates after update 2, in profile/update_00000002.*" in output
    for what in ("phases", "kernels"):
        assert (folder / "profile" / f"update_00000002.{what}.txt").read_text() in output


MODEL = """
import os, sys
from hydrant.models import MLP

def note(event, arguments):
    if event == "open" and str(arguments[0]).endswith(".phases.txt"):
        os.write(notes, f"rank {os.environ['RANK']}\\n".encode())

notes = os.open("writers", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
sys.addaudithook(note)

class Noted(MLP): ...
"""


@pytest.mark.slow
def test_only_rank_zero_of_several_writes_a_profile(workdir: Path) -> None:
    (workdir / "custom.py").write_text(MODEL)
    words = ("model._target_=custom.Noted", "allow_targets=[custom]", *SHORT, *WINDOW)
    run_on_ranks(2, workdir, [("train", "name=run", *words)])
    assert (workdir / "writers").read_text() == "rank 0\n"
    assert traced(workdir / "outputs" / "run")["optimizer"] == 3


def test_a_profiled_run_computes_the_same(train: Train) -> None:
    same_run = (*SHORT, "save_every=8")
    plain, profiled = train(*same_run, name="plain"), train(*same_run, *WINDOW, name="profiled")
    assert rows(profiled) == rows(plain)
    assert_same_state(weights(profiled), weights(plain))


@pytest.mark.parametrize(
    ("words", "forwards"),
    [
        (("experiment=gan_digits", "best.mode=min"), 3),
        *slow((("optimizer=lbfgs", "optimizer.max_iter=2"), 6), (("compile=aot_eager", "precision=bf16"), 3)),
    ],
)
@pytest.mark.usefixtures("gan")
def test_every_kind_of_update_is_profiled(words: tuple[str, ...], forwards: int, train: Train) -> None:
    settings = (
        SHORT if "experiment=gan_digits" not in words else [w for w in SHORT if not w.startswith("model.")]
    )
    folder = train(*words, *settings, *WINDOW)
    spans = traced(folder)
    assert (spans["forward"], spans["backward"], spans["optimizer"]) == (forwards,) * 3
    if "compile=aot_eager" in words:
        assert spans["Torch-Compiled Region: 0/0"] == 3
        assert summary(folder)["compile"]["recompiles"] == 0


def test_the_window_is_given_as_durations(train: Train) -> None:
    folder = train(
        *SHORT, "profiler=torch", "profiler.wait=64sa", "profiler.warmup=13%", "profiler.active=25%"
    )
    assert traced(folder, "update_00000003")["optimizer"] == 2


def test_a_stopped_run_writes_its_part_and_may_resume_with_another_window(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train(*SHORT, name="whole")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4)
        half = train(*SHORT, *WINDOW, name="half", status=130)
    assert traced(half)["optimizer"] == 2
    with monkeypatch.context() as patch:
        interrupt_at(patch, 6)
        train(*SHORT, "profiler=torch", "profiler.wait=0", "profiler.warmup=1", "profiler.active=7", name="half",
              status=130)  # fmt: skip
    # Counted from update 4, where the process started.
    assert traced(half, "update_00000005")["optimizer"] == 1
    capsys.readouterr()
    train(*SHORT, *WINDOW, name="half")
    message = "nothing was profiled, because the run ended after update 8 and update 9 would be the first"
    assert message in capsys.readouterr().out
    assert rows(half) == rows(whole)


def test_a_second_ctrl_c_does_not_wait_for_the_profile(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_at(monkeypatch, 4, times=2)
    folder = train(*SHORT, *WINDOW, status=130)
    assert "the profile is not written" in capsys.readouterr().out
    assert not (folder / "profile").exists()


def test_a_failed_run_writes_its_profile(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(*SHORT, *WINDOW, "optimizer.lr=1e30", "optimizer=sgd", "log_every=4", status=1)
    assert "became NaN" in capsys.readouterr().err
    assert traced(folder)["forward"] == 2


def test_a_full_disk_does_not_end_the_run(train: Train) -> None:
    with file_size_limit(100_000):  # torch itself reports nothing
        folder = train(*SHORT, *WINDOW, "profiler.memory_snapshot=false")
    assert summary(folder)["status"] == "finished"


def test_the_tracker_keeps_the_files(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = train(*SHORT, *WINDOW, "tracker=wandb", "profiler.memory_snapshot=false")
    (kept,) = folder.glob("wandb/offline-run-*/files/profile")
    written = {path.name: path.read_bytes() for path in (folder / "profile").iterdir()}
    assert len(written) == 3
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == written
