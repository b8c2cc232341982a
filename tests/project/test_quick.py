"""scripts/quick: which tests it runs."""

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
