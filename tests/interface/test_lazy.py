"""`import hydrant` imports nothing slow, and has every name of the interface."""

import ast
import sys

import pytest
from processes import printed
from repository import ROOT

import hydrant

SLOW = {"torch", "numpy", "pandas", "hydra", "omegaconf", "yaml", "tqdm", "IPython", "logging", "inspect"}


def exported() -> set[str]:
    """Return the names that type checkers and editors see."""
    tree = ast.parse((ROOT / "src" / "hydrant" / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.asname for node in imports for alias in node.names if alias.asname}


def test_type_checkers_see_the_names_that_exist() -> None:
    names = exported()
    assert names >= {"compose", "train", "load_run"}
    assert names <= set(dir(hydrant))
    assert all(getattr(hydrant, name).__name__ == name for name in names)
    with pytest.raises(AttributeError, match="module 'hydrant' has no attribute 'trian'"):
        _ = hydrant.trian  # type: ignore[attr-defined]


def test_only_what_is_used_is_imported() -> None:
    *_, after_import, after_load_run, after_train = printed(
        sys.executable, "-c", "import sys, hydrant; print(*sys.modules); hydrant.load_run; print(*sys.modules);"
        "hydrant.train; hydrant.compose; print(*sys.modules)"
    ).splitlines()  # fmt: skip
    assert SLOW.isdisjoint(after_import.split())
    assert {"torch", "pandas", "hydra"}.isdisjoint(after_load_run.split())
    assert {"torch", "pandas"}.isdisjoint(after_train.split())
    assert "hydrant.interface" in after_train.split()
