"""The experiments that train on tokens of the user's own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from run_folders import summary
from token_folders import write_bin
from training_runs import Train

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.extensions.language.token_files import BYTES
from hydrant.training.prepare.build import make_model


@pytest.fixture
def texts(workdir: Path) -> Path:
    """The tokens of bytes that `hydrant tokenize` writes into data/texts."""
    folder = workdir / "data" / "texts"
    for split in ("train", "val"):
        write_bin(folder / f"{split}_000000.bin", np.random.default_rng(0).integers(0, 257, 4000))
    BYTES.write(folder)
    return folder


def test_autoresearch_has_its_size_and_its_tokens_of_an_update(texts: Path) -> None:
    config = check(compose(["experiment=autoresearch"]))
    with torch.device("meta"):
        model = make_model(config)
    assert 49e6 < sum(p.numel() for p in model.parameters()) < 51e6
    assert config["global_batch_size"] * config["data"]["sequence_length"] == 2**19
    assert config["duration"] == "300s"


def test_autoresearch_trains_small(texts: Path, train: Train) -> None:
    folder = train(
        "experiment=autoresearch", "duration=4", "data.sequence_length=32", "model.num_layers=1", "model.width=32",
        "model.num_heads=2", "global_batch_size=8", "micro_batch_size=4", "eval_batch_size=8", "limit_val_samples=16",
        "log_every=1", "eval_every=2", "precision=fp32", "compile=eager", "tracker=local",
    )  # fmt: skip
    metrics = summary(folder)["metrics"]
    assert {"val/bits_per_byte", "perf/tokens_per_second", "perf/samples_per_second"} <= metrics.keys()
