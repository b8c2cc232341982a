"""Fixtures of the tests of training."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from limited_memory import MODULE


@pytest.fixture
def limited_model(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the module `limited`, with a model that runs out of memory, importable in a run."""
    (workdir / "limited.py").write_text(MODULE)
    monkeypatch.syspath_prepend(workdir)
    monkeypatch.delitem(sys.modules, "limited", raising=False)
