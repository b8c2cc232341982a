"""A run over texts of different lengths, and workers whose death is seen soon."""

from pathlib import Path

import pytest
from ragged_texts import TEXTS, WORDS
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from training_runs import UserModule


@pytest.fixture
def quick_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch look every 0.2 s, instead of every 5, whether a worker has died."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))


@pytest.fixture
def words(user_module: UserModule, workdir: Path) -> tuple[str, ...]:
    """The overrides of a run over dicts of padded sequences with masks."""
    user_module("own_texts", TEXTS)
    option = workdir / "conf" / "model" / "bag.yaml"
    option.parent.mkdir(parents=True)
    option.write_text("_target_: own_texts.Bag\n")
    return WORDS
