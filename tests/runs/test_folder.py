"""The files of a run folder describe the run, as docs/reference/run-folder.md says."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from processes import printed
from training_runs import Train

from hydrant.installation import commit, version

SHORT = ("duration=20", "log_every=5", "eval_every=10", "save_every=10", "model.hidden=[16]", "seed=3")


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.figures
def test_every_file_describes_the_run(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = train(*SHORT, "optimizer=sgd", "scheduler=linear")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["seed"] == 3
    assert config["optimizer"]["_target_"] == "torch.optim.SGD"
    assert "${" not in (folder / "config.yaml").read_text()
    overrides = yaml.safe_load((folder / ".hydra" / "overrides.yaml").read_text())
    assert overrides == ["name=run", *SHORT, "optimizer=sgd", "scheduler=linear"]
    assert {p.name for p in (folder / ".hydra").iterdir()} == {"config.yaml", "hydra.yaml", "overrides.yaml"}

    summary = json.loads((folder / "summary.json").read_text())
    last: dict[str, Any] = {}
    for row in rows(folder):
        last |= row
    assert summary["status"] == "finished"
    assert summary["num_updates"] == summary["total_updates"] == 20
    assert summary["metrics"] == {k: v for k, v in last.items() if "/" in k}
    assert summary["best"]["metric"] == "val/accuracy"
    assert summary["compile"] == {
        "graphs": 0, "graph_breaks": 0, "recompiles": 0, "seconds": 0.0, "cold_seconds": 0.0,
    }  # fmt: skip
    rates = {"updates_per_second", "samples_per_second"}
    assert set(summary["perf"]) == rates | {"training_seconds", "peak_memory_gib", "mfu"}
    assert summary["perf"]["samples_per_second"] == pytest.approx(64 * summary["perf"]["updates_per_second"])
    assert summary["environment"]["torch"] == torch.__version__
    assert summary["environment"]["hydrant"] == version()
    assert summary["environment"]["hydrant_commit"] == commit()
    assert set(summary["environment"]) == {
        "python", "torch", "cuda", "gpu", "world_size", "slurm_job", "hydrant", "hydrant_commit", "git_commit",
        "git_dirty",
    }  # fmt: skip
    assert summary["error"] is None
    assert summary["wandb"]["mode"] == "offline"
    assert (folder / summary["wandb"]["path"]).is_dir()

    assert json.loads((folder / "compile_report.json").read_text())["graph_breaks"] == []
    with Image.open(folder / "schedule.png") as picture:
        assert picture.size[0] > 400
    with Image.open(folder / "curves.png") as picture:
        assert picture.size[0] > 800  # two columns
    planned = json.loads((folder / "schedule.json").read_text())
    assert planned["updates"] == list(range(20)), "every update, since there are few"
    logged = {row["num_updates"]: row["optim/lr"] for row in rows(folder) if "optim/lr" in row}
    assert {n: planned["values"]["lr"][n - 1] for n in logged} == pytest.approx(logged)
    assert "finished: 20 updates" in (folder / "train.log").read_text()
    checkpoints = {p.name for p in (folder / "checkpoints").iterdir()}
    assert checkpoints - {"update_00000010"} == {"last", "best", "update_00000020"}
    assert_wandb_has_the_same_metrics(folder, summary["wandb"])


def assert_wandb_has_the_same_metrics(folder: Path, run: dict[str, Any]) -> None:
    wandb = Path(sys.executable).with_name("wandb")
    output = printed(wandb, "leet", "inspect", "--json", folder / run["path"])
    records = [json.loads(line) for line in output.splitlines()]
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    logged = [{k: v for k, v in item.items() if not k.startswith("_")} for item in items]
    assert [row for row in logged if "epoch" in row] == rows(folder)
    assert any("schedule.path" in row for row in logged)  # the picture
    identity = next(record["run"] for record in records if record["type"] == "run")
    assert identity["run_id"] == run["id"]
    assert identity["run_group"] == "digits-mlp/sgd/linear/duration=20,model.hidden=[16]"  # without the seed
    assert identity["job_type"] == "classification"
    assert identity["notes"].endswith("seed=3 optimizer=sgd scheduler=linear")
    assert identity["config"]["update"]["optimizer"] == "sgd"
    assert identity["config"]["update"]["optimizer.lr"] == 0.1
