"""In each process of a run, users' code sees the settings of this run: by `HydraConfig.get()` and as variables."""

import json
from pathlib import Path
from typing import Any

import pytest
from faulty_model import TORCHRUN
from marks import of_extension, slow
from processes import printed
from repository import ROOT
from tiny_runs import TINY
from training_runs import UserModule, command

from hydrant import cli

NOTING = """
import json, os, pathlib
from hydra.core.hydra_config import HydraConfig

class Note:
    def on_start(self, trainer):
        hydra, rank = HydraConfig.get(), trainer.plan.world.rank
        seen = {"mode": str(hydra.mode), "num": hydra.job.get("num"), "task": list(hydra.overrides.task)[-1],
                "optimizer": hydra.runtime.choices.optimizer, "folder": hydra.runtime.output_dir,
                "flavour": os.environ.get("FLAVOUR")}
        pathlib.Path(hydra.runtime.output_dir, f"seen-{rank}").write_text(json.dumps(seen))
"""
WORDS = (*TINY, "+hooks.note._target_=noting.Note", "allow_targets=[noting]", "optimizer=sgd", "duration=2",
         "+hydra.job.env_set.FLAVOUR=sweet", "name=a")  # fmt: skip
RANKS = ("parallel=ddp", "parallel.num_processes=2")


def seen(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


@pytest.mark.parametrize("launcher", ["basic", *of_extension(*slow("local"))])
def test_each_job_of_a_sweep_sees_its_own_settings(
    launcher: str, workdir: Path, user_module: UserModule
) -> None:
    user_module("noting", NOTING)
    assert cli.main(["train", *WORDS, "--multirun", f"hydra/launcher={launcher}", "seed=3,4"]) == 0
    folders = sorted((workdir / "multirun" / "a").glob("seed-*"))
    assert len(folders) == 2
    for number, folder in enumerate(folders):
        assert seen(folder / "seen-0") == {
            "mode": "RunMode.MULTIRUN", "num": number, "task": f"seed={3 + number}", "optimizer": "sgd",
            "folder": str(folder), "flavour": "sweet",
        }  # fmt: skip


@pytest.mark.usefixtures("without_gpu")  # more ranks than GPUs
@pytest.mark.slow
@pytest.mark.parametrize("starter", ["hydrant", "torchrun"])
def test_each_rank_sees_the_settings_of_its_run(starter: str, workdir: Path) -> None:
    words = {
        "hydrant": command(*WORDS, *RANKS, "seed=3"),
        "torchrun": [*TORCHRUN, str(ROOT / "train.py"), *WORDS, "parallel=ddp", "seed=3"],
    }[starter]
    (workdir / "noting.py").write_text(NOTING)
    printed(*words, timeout=300)
    folder = workdir / "outputs" / "a"
    expected = {"mode": "RunMode.RUN", "num": None, "task": "seed=3", "optimizer": "sgd", "folder": str(folder),
                "flavour": "sweet"}  # fmt: skip
    assert [seen(folder / f"seen-{rank}") for rank in range(2)] == [expected, expected]
