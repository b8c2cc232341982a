"""A run over texts of different lengths."""

from pathlib import Path

import pytest
from ragged_texts import TEXTS, WORDS
from training_runs import UserModule


@pytest.fixture
def words(user_module: UserModule, workdir: Path) -> tuple[str, ...]:
    """The overrides of a run over dicts of padded sequences with masks."""
    user_module("own_texts", TEXTS)
    option = workdir / "conf" / "model" / "bag.yaml"
    option.parent.mkdir(parents=True)
    option.write_text("_target_: own_texts.Bag\n")
    return WORDS
