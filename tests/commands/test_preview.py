"""`hydrant preview` shows what training then does."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_runs import Train

from hydrant import cli

RUN = ("tracker=local", "duration=12", "log_every=1", "eval_every=6", "save_every=6")


def test_preview_shows_the_schedules_of_the_run(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    config = (*RUN, "scheduler=wsd", "scheduler.warmup=25%", "+scheduler@schedules.weight_decay=linear")
    assert cli.main(["preview", *config, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    folder = train(*config)
    capsys.readouterr()
    assert cli.main(["preview", *config, "--json", "--points", "3"]) == 0
    few = json.loads(capsys.readouterr().out)
    assert (few["updates"], few["schedules"]["lr"][1]) == ([0, 5, 11], plan["schedules"]["lr"][5])
    long = ("tracker=local", "duration=1000", "scheduler=linear")
    for options, num in {(): 21, ("--points", "500"): 500, ("--points", "all"): 1000}.items():
        assert cli.main(["preview", *long, "--json", *options]) == 0
        found = json.loads(capsys.readouterr().out)
        assert len(found["schedules"]["lr"]) == len({*found["updates"]}) == num
        assert (found["updates"][0], found["updates"][-1]) == (0, 999)
    assert cli.main(["preview", *long, "--points", "some"]) == 2
    assert "--points: invalid" in capsys.readouterr().err
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert plan["total_updates"] == 12
    assert set(plan["schedules"]) == {"lr", "weight_decay"}
    assert plan["schedules"]["lr"] == [row["optim/lr"] for row in rows[1:]]
    assert plan["schedules"]["weight_decay"] == [row["optim/weight_decay"] for row in rows[1:]]


def test_time_says_what_a_run_costs_here(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    words = ("preview", "precision=bf16", "tracker=local", "duration=1000")
    assert cli.main([*words, "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["time"]
    assert 0 < cost["seconds_per_update"] < 60
    assert 0 < cost["cpu_seconds"] < 1000 * 60
    assert cost["times_faster_in_fp32"] is None
    assert cost["cpu_seconds_of_sweep"] == cost["cpu_seconds"]
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {})
    assert cli.main(list(words)) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^time +\S+ s an update here.*\n +\S+ s of processor time", shown, flags=re.MULTILINE)
    assert re.search(r"^ +this CPU has no bfloat16: fp32 is \S+ times as fast$", shown, flags=re.MULTILINE)
    assert cli.main(["preview", "-m", "tracker=local", "optimizer=adamw,sgd", "seed=1,2,3", "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["time"]
    assert cost["cpu_seconds_of_sweep"] > 3 * cost["cpu_seconds"]  # three runs of each optimizer
    assert list(workdir.iterdir()) == []


@pytest.mark.figures
def test_a_very_long_run_is_sampled(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*RUN[:1], "duration=1e12", "scheduler=linear", "scheduler.warmup=50%")
    assert cli.main(["preview", *words, "--png", "plan.png"]) == 0
    assert "1,000,000,000,000 of 64 samples" in capsys.readouterr().out
    assert (workdir / "plan.png").is_file()


def test_preview_refuses_what_train_refuses(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Although it has no use for the node `hydra`, which a stranger's file may set."""
    option = workdir / "conf" / "experiment" / "strange.yaml"
    option.parent.mkdir(parents=True)
    handler = "{(): os.system, command: touch called}"
    option.write_text(f"# @package _global_\nhydra: {{job_logging: {{handlers: {{x: {handler}}}}}}}\n")
    assert cli.main(["preview", "experiment=strange"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: hydra.job_logging.handlers.x.(): 'os.system' is not allowed"
    )
    assert not (workdir / "called").exists()


@pytest.mark.extension
def test_preview_writes_only_the_picture(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["preview", "optimizer=torch_muon", "--png", "lr.png"]) == 0
    assert [p.name for p in workdir.iterdir()] == ["lr.png"]
    text = capsys.readouterr().out
    counts = ("85,002 parameters", "FLOPs", "main.0 (all): 84,480", "main.1 (all): 522")
    for part in ("1,348 of 64 samples: 60 epochs", *counts):
        assert part in text
    monkeypatch.setattr("hydrant.installation.listeners", dict)  # nothing draws
    assert cli.main(["preview", "--png", "lr.png"]) == 2
    assert list(workdir.iterdir()) == []


def test_preview_shows_the_share_of_each_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["preview", "parallel.num_processes=2"]) == 0
    assert "micro-batch  32 samples x 1 x 2 rank(s)" in capsys.readouterr().out
    assert cli.main(["preview", "parallel.num_processes=2", "global_batch_size=63"]) == 2
    assert "63 is not divisible by 2 ranks" in capsys.readouterr().err


def test_preview_counts_the_flops_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["preview", "model.hidden=[]"]) == 0
    assert f"{2 * 64 * 10:,} FLOPs" in capsys.readouterr().out


@pytest.mark.slow
def test_a_closed_pipe_is_no_error() -> None:
    hydrant = Path(sys.executable).with_name("hydrant")
    with subprocess.Popen(
        [hydrant, "preview", "--json", "--points=all", "duration=50000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(120) == 141
        assert process.stderr.read() == b""
