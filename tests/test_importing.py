"""Importing without the garbage collector: what comes in is not looked at again, garbage made later is collected."""

from __future__ import annotations

import gc
import importlib
import weakref
from collections.abc import Generator
from pathlib import Path

import pytest

from hydrant.importing import importing
from hydrant.isolation import call_isolated


@pytest.fixture(autouse=True)
def _thawed() -> Generator[None]:
    yield
    gc.unfreeze()


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_as_before(before: bool) -> None:
    """Within one another, and where an import fails."""
    (gc.enable if before else gc.disable)()
    try:
        with importing():
            with importing():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() == before
        with pytest.raises(ModuleNotFoundError), importing():
            importlib.import_module("no_such_module")
        assert gc.isenabled() == before
    finally:
        gc.enable()


def test_what_came_in_is_frozen_and_later_garbage_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "brought_in.py").write_text("class Kept:\n    items = [[] for _ in range(100)]\n")
    monkeypatch.syspath_prepend(tmp_path)
    gc.unfreeze()
    with importing():
        pass
    assert gc.get_freeze_count() == 0  # nothing came in
    with importing():
        brought_in = importlib.import_module("brought_in")
    assert not any(item is brought_in.Kept for item in gc.get_objects())
    assert gc.get_freeze_count() > len(brought_in.Kept.items)

    class Node:
        pass

    node = Node()
    node.itself = node  # type: ignore[attr-defined]
    end = weakref.ref(node)
    del node
    gc.collect()
    assert end() is None


def test_a_process_of_its_own_finds_its_imports_frozen() -> None:
    for function, is_so in ((gc.get_freeze_count, lambda count: count > 100_000), (gc.isenabled, bool)):
        assert is_so(call_isolated(function, (), ["torch"]).result)
