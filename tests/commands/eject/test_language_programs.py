"""Ejected files of language models train as their configs do."""

from __future__ import annotations

from pathlib import Path

import pytest
from eject_files import write_texts
from ejected import check_equal, unchanged_process
from language_models import TINY, save_tokens
from marks import slow

__all__ = ["unchanged_process"]
pytestmark = pytest.mark.usefixtures("unchanged_process")

MODEL = "model=gpt model.num_layers=2 model.width=16 model.num_heads=2"
RUN = "task=language_modeling global_batch_size=8 eval_batch_size=6 limit_val_samples=14"


@pytest.mark.parametrize(
    "words",
    [
        *slow(MODEL),
        f"{MODEL} data.train=train_0.bin data.sampling=contiguous precision=bf16 micro_batch_size=4",
        f"{MODEL} data.sampling=documents micro_batch_size=4 averaging=ema",
        pytest.param(
            f"{MODEL} data.sampling=documents data.separator_position=start model.dropout=0.1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            f"{MODEL} task.max_logits_gib=1e-6 model.tie_embeddings=true model.logit_softcap=20 model.norm=layer",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            f"{MODEL} model.activation=gelu model.positions=learned model.num_kv_heads=1 model.qk_norm=false",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            f"{MODEL} model.activation=relu2 model.positions=none model.zero_init=false "
            "model.activation_checkpointing=true",
            marks=pytest.mark.slow,
        ),
        pytest.param(f"{MODEL} task.z_loss=0.01 data.sampling=documents", marks=pytest.mark.slow),
        pytest.param(
            f"{MODEL} task.z_loss=0.01 task.max_logits_gib=1e-6 precision=bf16 micro_batch_size=4",
            marks=pytest.mark.slow,
        ),
        "model=track3 model.num_layers=2 model.width=16 model.head_dim=8 precision=bf16",
    ],
)
def test_tokens_in_files(words: str, workdir: Path) -> None:
    write_texts(workdir / "texts")
    check_equal(f"data=tokens data.root=texts data.sequence_length=16 {RUN} {words}", workdir)


def test_tokens_of_which_some_are_ignored(workdir: Path) -> None:
    save_tokens(num_samples=40, ignored=0.3)
    check_equal(" ".join([*TINY, "limit_train_samples=null", "limit_val_samples=null"]), workdir)
