"""Fixtures of the tests of training."""

import sys

import pytest
from limited_memory import MODULE
from training_runs import UserModule


@pytest.fixture
def limited_model(user_module: UserModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the module `limited`, with a model that runs out of memory, importable in a run."""
    user_module("limited", MODULE)
    monkeypatch.delitem(sys.modules, "limited", raising=False)
