from __future__ import annotations

import pytest

from hydrant.sweeps import sparing


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every update compare again at once."""
    monkeypatch.setattr(sparing, "_REST", 0.0)
