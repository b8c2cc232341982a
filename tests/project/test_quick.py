"""scripts/quick: which tests it runs, and its exit status."""

import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
from repository import ROOT

SCRIPT = ROOT / "scripts" / "quick"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("quick_script", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("file", "first", "has", "lacks"),
    [
        ("src/hydrant/optimizers/ema.py", "optimizers/test_ema.py", "optimizers/test_kernels.py", "test_cli.py"),
        ("src/hydrant/extensions/compare/statistics.py", "extensions/compare/test_statistics.py",
         "extensions/compare/test_groups.py", "data/test_loader.py"),
        ("src/hydrant/cli.py", "test_cli.py", "interface/test_own_objects.py", "test_clock.py"),
        ("conf/optimizer/sgd.yaml", "config/test_best.py", "config/test_options.py", "data/test_loader.py"),
    ],
)  # fmt: skip
def test_the_nearest_tests_come_first(
    script: ModuleType, file: str, first: str, has: str, lacks: str
) -> None:
    tests = [str(test.relative_to(ROOT / "tests")) for test in script.nearest_tests([Path(file)])]
    assert tests[0] == first
    assert has in tests
    assert lacks not in tests


@pytest.mark.slow
def test_the_exit_status_is_that_of_the_tests(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "quick").write_bytes(SCRIPT.read_bytes())
    (tmp_path / "tests").mkdir()
    commands = (["init", "-q", "-b", "main"], ["commit", "-q", "--allow-empty", "-m", "first"])
    for words in commands:
        settings = ["-c", "user.name=one", "-c", "user.email=one@example.org"]
        subprocess.run(["git", *settings, *words], cwd=tmp_path, check=True)
    (tmp_path / "tests" / "test_one.py").write_text("def test_one():\n    assert False\n")
    own = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run([sys.executable, "scripts/quick"], cwd=tmp_path, env=own, check=False)
    assert done.returncode == 1
