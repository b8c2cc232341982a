"""scripts/gpu: the rehearsal of each part, what it keeps if it is interrupted, and the metadata of a checkout."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from repository import ROOT

from benchmarks import GPU_PARTS
from benchmarks import __main__ as benchmarks_main
from benchmarks.figures import Figure, Item
from benchmarks.report import FAILED, MEASURED, Report

MACHINE = {
    "gpu": "H200",
    "cpu": "x",
    "torch": "2.15",
    "git_commit": "abc",
    "git_dirty": False,
    "quick": False,
}


def rehearse(part: str, folder: Path) -> dict[str, Any]:
    """Rehearse a part and return its results by benchmark."""
    folder.mkdir(exist_ok=True)
    words = [sys.executable, str(ROOT / "scripts" / "gpu"), part, "--rehearse", "--output", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("*.json")
    results = json.loads(file.read_text())
    assert results["measured"]["quick"]
    assert list(results["benchmarks"]) == GPU_PARTS[part]
    return results["benchmarks"]


def assert_complete(benchmarks: dict[str, Any]) -> None:
    for benchmark in benchmarks.values():
        assert benchmark["figures"]
        assert set(benchmark["cells"].values()) == {MEASURED}
        assert {row["cell"] for row in benchmark["figures"]} == set(benchmark["cells"])


@pytest.mark.slow
def test_the_cheapest_part_in_rehearsal(tmp_path: Path) -> None:
    assert_complete(rehearse("tests", tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in GPU_PARTS if part != "tests"])
def test_every_part_in_rehearsal(part: str, tmp_path: Path) -> None:
    assert_complete(rehearse(part, tmp_path))


@pytest.fixture
def gpu_script() -> ModuleType:
    """The script as a module."""
    loader = SourceFileLoader("gpu_script", str(ROOT / "scripts" / "gpu"))
    spec = spec_from_loader("gpu_script", loader)
    assert spec is not None
    path, sys.dont_write_bytecode = list(sys.path), True
    module = module_from_spec(spec)
    loader.exec_module(module)
    sys.path[:] = path
    return module


def test_a_checkout_that_is_not_installed_knows_its_version(gpu_script: ModuleType, tmp_path: Path) -> None:
    gpu_script.write_metadata(tmp_path)
    (found,) = metadata.distributions(path=[str(tmp_path)])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (found.metadata["Name"], found.version) == (project["name"], project["version"])


Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """`measure(cells, **machine)`: measure a benchmark into the same file; return its results."""

    def function(cells: dict[str, Callable[[], Iterator[Item]]], **machine: Any) -> dict[str, Any]:
        module: Any = ModuleType("benchmarks.planted", "A planted benchmark.")
        module.cells = lambda *, quick: cells
        monkeypatch.setitem(sys.modules, "benchmarks.planted", module)
        Report(tmp_path / "results.json", {**MACHINE, **machine}).measure("planted", quick=False, cells="")
        return json.loads((tmp_path / "results.json").read_text())["benchmarks"]["planted"]

    return function


def one(value: float) -> Callable[[], Iterator[Item]]:
    return lambda: iter([Figure("one", value, "x")])


def fail() -> Iterator[Item]:
    yield Figure("before", 1.0, "x")
    raise ValueError("broken")


def interrupt() -> Iterator[Item]:
    yield Figure("before", 1.0, "x")
    raise KeyboardInterrupt


def test_a_cell_that_fails_is_recorded_and_measured_again_and_others_are_measured(
    measure: Measure,
) -> None:
    benchmark = measure({"bad": fail, "good": one(2.0)})
    assert benchmark["cells"] == {"bad": FAILED, "good": MEASURED}
    assert benchmark["failures"] == [{"cell": "bad", "what": "bad", "error": "ValueError: broken"}]
    assert [row["cell"] for row in benchmark["figures"]] == ["bad", "good"]
    again = measure({"bad": one(3.0), "good": fail})
    assert (set(again["cells"].values()), again["failures"]) == ({MEASURED}, [])
    assert sorted(row["median"] for row in again["figures"]) == [2.0, 3.0]


def test_an_interrupted_part_keeps_its_figures_and_goes_on(measure: Measure, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure({"first": one(1.0), "bad": interrupt, "last": one(3.0)})
    kept = json.loads((tmp_path / "results.json").read_text())["benchmarks"]["planted"]
    assert kept["cells"] == {"first": MEASURED, "bad": None, "last": None}
    assert [row["what"] for row in kept["figures"]] == ["one", "before"]
    again = measure({"first": fail, "bad": one(2.0), "last": one(3.0)})
    assert set(again["cells"].values()) == {MEASURED}
    assert [row["median"] for row in again["figures"]] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "change",
    [{"git_commit": "def"}, {"git_commit": None}, {"git_dirty": True}, {"gpu": "H100"}, {"torch": "2.11"}],
    ids=str,
)
def test_figures_of_other_code_or_another_machine_are_not_kept(
    change: dict[str, Any], measure: Measure
) -> None:
    measure({"first": one(1.0)}, **change if change in ({"git_commit": None}, {"git_dirty": True}) else {})
    assert [row["median"] for row in measure({"first": one(2.0)}, **change)["figures"]] == [2.0]


def test_a_part_for_a_gpu_is_refused_without_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tests would all run on the stub, and pass."""
    monkeypatch.setattr(sys, "argv", ["benchmarks", "tests"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        benchmarks_main.main()
    assert "tests: needs a GPU, and torch finds none here" in capsys.readouterr().err
