"""experiment=gpt_tiny learns to read, and resumes exactly."""

from pathlib import Path

import pytest
from run_folders import assert_same_state, rows, weights
from training_runs import Train, whole_and_resumed

GPT_TINY = ("experiment=gpt_tiny", "tracker=local")


def texts(run: Path) -> dict[str, str]:
    return {str(path.relative_to(run)): path.read_text() for path in sorted((run / "texts").rglob("*.txt"))}


@pytest.mark.slow
def test_it_falls_below_the_unigram_entropy_and_resumes_exactly(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, resumed = whole_and_resumed(train, monkeypatch, GPT_TINY, stop_at=150)
    last = rows(whole)[-1]
    assert last["val/loss"] < 0.9 * last["val/unigram_entropy"]
    assert len(texts(whole)) == 4
    assert rows(whole) == rows(resumed)
    assert texts(whole) == texts(resumed)
    assert_same_state(weights(whole), weights(resumed))
