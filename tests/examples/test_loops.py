"""The programs of examples/loops: their runs have the weights of their plain loops."""

import importlib
import runpy
from pathlib import Path

import pytest
from example_projects import EXAMPLES, use_example
from marks import slow_but
from run_folders import rows, weights
from torch.testing import assert_close
from training_runs import Train, seeded_batches

import hydrant
from hydrant.training.prepare.build import prepare

FEW = ("tracker=local", "duration=6", "log_every=2", "eval_every=3", "save_every=6", "optimizer.fused=false")
LOOPS = sorted(path.stem for path in (EXAMPLES / "loops").glob("*.py"))


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> Path:
    return use_example("loops", monkeypatch)


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("name", slow_but(("gan", "graph", "lstm"), LOOPS))
def test_a_run_is_the_plain_loop_of_its_file(name: str, train: Train) -> None:
    words = (f"experiment={name}", *FEW)
    plan = prepare(hydrant.compose(words))
    model = plan.task.model
    importlib.import_module(name).plain_loop(model, seeded_batches(plan))
    run = train(*words)
    tolerance = 1e-6 if name == "lstm" else 0  # whose mean over tokens is one of samples, and then scaled
    assert_close(weights(run), dict(model.state_dict()), rtol=0, atol=tolerance)
    assert {"train/loss", "val/loss"} <= rows(run)[-1].keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_a_file_runs_its_plain_loop(name: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(project / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out
