"""Ranks with a GPU of the stub each train together: NCCL's functions move bytes between their processes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from nccl_ranks import check_collectives
from run_folders import rows

pytestmark = pytest.mark.cuda(devices=4)

Train = Callable[..., Path]

DIGITS = ("tracker=local", "data=digits", "model.hidden=[16]", "model.dropout=0", "duration=6", "log_every=1")


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_collectives_give_the_right_numbers(num_ranks: int, tmp_path: Path) -> None:
    check_collectives(tmp_path, num_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_equal_one(parallel: str, train: Train) -> None:
    alone = train(*DIGITS, name="one")
    together = train(*DIGITS, f"parallel={parallel}", "parallel.num_processes=2", name="two")
    for one, two in zip(rows(alone), rows(together), strict=True):
        for key in ("train/loss", "val/loss", "optim/grad_norm"):
            assert one.get(key, 0) == pytest.approx(two.get(key, 0), rel=1e-5)
