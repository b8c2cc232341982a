"""The model and the experiment of track 3."""

from pathlib import Path

import numpy as np
import pytest
import torch
from example_projects import use_example
from run_folders import rows, weights
from token_folders import write_bin
from training_runs import Train

from examples.track3.by_hand import Shape
from examples.track3.by_hand import train as train_by_hand
from examples.track3.track3 import Track3GPT
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError
from hydrant.training.prepare.build import make_model

TINY = (
    "experiment=track3", "data.root=tokens", "data.sequence_length=32", "data.vocab_size=64", "model.num_layers=2",
    "model.width=32", "model.head_dim=16", "global_batch_size=8", "micro_batch_size=4", "duration=10", "eval_every=5",
    "save_every=5", "log_every=1", "precision=fp32", "compile=eager", "tracker=local", "optimizer.dtype=bfloat16",
)  # fmt: skip


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> None:
    use_example("track3", monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("without_gpu")
def test_the_updates_of_the_experiment_are_those_of_the_script(train: Train, workdir: Path) -> None:
    files = [
        write_bin(
            workdir / "tokens" / f"fineweb_train_{n}.bin", np.random.default_rng(n).integers(0, 64, 2000)
        )
        for n in range(2)
    ]
    write_bin(workdir / "tokens" / "fineweb_val_0.bin", np.arange(500) % 64)
    by_hand = {
        name: weight.clone().requires_grad_()
        for name, weight in make_model(check(compose(TINY))).state_dict().items()
    }
    shape = Shape(sequence_length=32, batch_size=8, micro_batch_size=4, head_dim=16, num_updates=10)
    losses = [float(loss) for loss in train_by_hand(by_hand, files, shape, 10, None)]
    folder = train(*TINY)
    trained = weights(folder)
    assert trained.keys() == by_hand.keys()
    assert [row["train/loss"] for row in rows(folder) if "train/loss" in row] == pytest.approx(
        losses, rel=1e-6
    )
    for name, weight in by_hand.items():
        assert torch.equal(trained[name], weight.detach()), name


def test_the_shape_of_the_experiment_is_the_published_one() -> None:
    words = (
        "experiment=track3",
        "data.fingerprint=null",
        "data.separator=null",
        "data.separator_position=null",
    )
    config = check(compose(words))
    with torch.device("meta"):
        model = make_model(config)
    assert sum(p.numel() for p in model.parameters()) == 2 * 50304 * 768 + 50304 + 2 * 768 + 12 * (
        12 * 768**2 + 9 * 768 + 2 * 768
    )
    assert config["global_batch_size"] * config["data"]["sequence_length"] == 2**19


def test_logits_are_bounded_and_see_only_earlier_tokens() -> None:
    torch.manual_seed(0)
    model = Track3GPT(vocab_size=20, num_layers=2, width=32, head_dim=16)
    assert not model(torch.zeros(1, 3, dtype=torch.int64)).any()  # the readout starts at 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=2)
    tokens = torch.randint(20, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = 0
    logits, others = model(tokens), model(changed)
    torch.testing.assert_close(logits[:, :5], others[:, :5])
    assert not torch.allclose(logits[:, 5:], others[:, 5:])
    assert 14 < logits.abs().max() <= 15


def test_heads_that_do_not_fit_and_documents_are_refused() -> None:
    message = r"model\.head_dim: 24 is no multiple of 4 that divides model\.width=32"
    with pytest.raises(ConfigError, match=message):
        Track3GPT(vocab_size=20, num_layers=1, width=32, head_dim=24)
    model = Track3GPT(vocab_size=20, num_layers=1, width=32, head_dim=16)
    with pytest.raises(ConfigError, match=r"data\.sampling: this model does not divide documents"):
        model({"tokens": torch.zeros(1, 3, dtype=torch.int64)})
