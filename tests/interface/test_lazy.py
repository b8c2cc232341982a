"""`import hydrant` imports nothing slow, and has every name of the interface."""

import ast

import pytest
from processes import modules_after
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


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import hydrant", SLOW),
        ("import hydrant; hydrant.load_run", {"torch", "pandas", "hydra"}),
        ("import hydrant; hydrant.train; hydrant.compose", {"torch", "pandas"}),
    ],
)
def test_only_what_is_used_is_imported(code: str, absent: set[str]) -> None:
    loaded = modules_after(code)
    assert "hydrant" in loaded
    assert absent.isdisjoint(loaded)
