"""experiment=gpt_tiny learns to read, resumes exactly, and does not depend on the number of ranks."""

from pathlib import Path
from typing import Any

import pytest
from run_folders import assert_close_rows, assert_same_state, rows, weights
from training_runs import Train, train_in_child, whole_and_resumed

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


@pytest.mark.slow
def test_two_ranks_equal_one(workdir: Path) -> None:
    words = ("experiment=gpt_tiny", "duration=20", "log_every=5", "eval_every=10")
    one = train_in_child(workdir, "one", *words)
    two = train_in_child(workdir, "two", *words, "parallel.num_processes=2")

    def losses(folder: Path) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k.startswith(("train/", "val/"))} for row in rows(folder)]

    assert_close_rows(one, two, rel=1e-6, read=losses)
