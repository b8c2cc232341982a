"""`hydrant compare --wandb` saves workspaces with the real SDK."""

import json
from pathlib import Path

import pytest
from planted import write_run
from wandb_rows import Make, log_run_folder
from wandb_server import WandbServer

from hydrant import cli


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of wandb-workspaces, when it is imported
def test_the_comparison_is_saved_in_wandb(
    wandb_server: WandbServer, make_wandb: Make, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stand-in accepts the workspace that wandb-workspaces sends. How W&B draws them is not tested."""
    for optimizer, final in {"adamw": 0.94, "sgd": 0.90}.items():
        log_run_folder(
            write_run(workdir / "study" / optimizer, {"optimizer": optimizer}, final, num_rows=3), make_wandb
        )
    write_run(workdir / "study" / "lion", {"optimizer": "lion"}, 0.80, num_rows=3)
    assert cli.main(["compare", "study", "--wandb"]) == 0
    printed = capsys.readouterr()
    assert f"W&B workspace: {wandb_server.url}/tester/study?nw=" in printed.err
    assert "1 of the 3 runs are not in W&B" in printed.err

    [workspace] = wandb_server.views
    ids = sorted(run.run_id for run in wandb_server.runs.values())
    assert workspace["displayName"] == "val accuracy by optimizer"
    text = json.dumps(workspace["spec"])
    assert all(run_id in text for run_id in ids)
    assert "optimizer.value" in text
    assert '"val/accuracy"' in text
    assert '"num_updates"' in text
    assert "config:optimizer.value" in text, "an axis of the parallel coordinates"


def test_saving_needs_a_login(
    wandb_home: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(workdir / "run", {}, 0.9)
    assert cli.main(["compare", "run", "--wandb"]) == 2
    printed = capsys.readouterr()
    assert "a workspace needs a login: `wandb login`" in printed.err
    assert printed.out == "", "nothing is compared without a login"


def test_runs_without_a_copy_in_wandb_are_an_error(
    wandb_server: WandbServer, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(workdir / "run", {}, 0.9)
    assert cli.main(["compare", "run", "--wandb"]) == 2
    assert (
        "--wandb: none of the runs is in W&B; `hydrant sync` uploads offline runs" in capsys.readouterr().err
    )
