"""The noise scale is that of known gradients, and measuring it leaves the training as it is."""

from pathlib import Path

import pytest
import torch
from example_projects import use_example
from run_folders import assert_same_state, rows, weights
from training_runs import DIGITS, Train, whole_and_resumed

from examples.papers.curvature import estimates
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError
from hydrant.training.prepare.build import prepare

WORDS = (*DIGITS, "model.hidden=[8]", "model.dropout=0", "limit_train_samples=60", "global_batch_size=60", "duration=4",
         "micro_batch_size=1", "log_every=1", "eval_every=null")  # fmt: skip
HOOK = ("hook=gradient_noise", "hooks.gradient_noise.every=1", "hooks.gradient_noise.decay=0.5")


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> None:
    use_example("papers", monkeypatch)


def test_estimates_of_known_noise_are_not_biased() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, deviation, small, count = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([3.0, 0.5, 1.0]), 4, 8
    samples = (
        torch.randn(20_000, count, small, 3, generator=generator, dtype=torch.float64) * deviation + mean
    )
    of_small = samples.mean(2).square().sum(-1).mean().item()
    of_large = samples.mean((1, 2)).square().sum(-1).mean().item()
    squared_norm, variance = estimates(of_small, of_large, small, small * count)
    assert squared_norm == pytest.approx(mean.square().sum().item(), rel=0.02)
    assert variance == pytest.approx(deviation.square().sum().item(), rel=0.02)


@pytest.mark.slow
def test_it_is_that_of_the_gradients_of_single_samples(train: Train) -> None:
    run = train(*WORDS, *HOOK, name="measured")
    assert_same_state(weights(train(*WORDS, name="plain")), weights(run))
    measured = [row for row in rows(run) if "gradient_noise/variance" in row]
    assert [row["num_updates"] for row in measured] == [1, 2, 3, 4]
    plan = prepare(check(compose(WORDS)))
    gradients = list[torch.Tensor]()
    for batch in plan.data.train.stream(plan.spec).micro_batches(0):
        loss = plan.task(batch).total_loss()
        parts = torch.autograd.grad(loss, list(plan.task.model.parameters()))
        gradients.append(torch.cat([part.reshape(-1).double() for part in parts]))
    every = torch.stack(gradients)
    variance = every.var(dim=0, correction=1).sum().item()
    squared_norm = every.mean(0).square().sum().item() - variance / 60
    first = measured[0]
    assert first["gradient_noise/variance"] == pytest.approx(variance, rel=1e-4)
    assert first["gradient_noise/squared_norm"] == pytest.approx(squared_norm, rel=1e-4)
    assert first["gradient_noise/scale"] == pytest.approx(variance / squared_norm, rel=1e-4)
    ratio = [(row["gradient_noise/variance"], row["gradient_noise/squared_norm"]) for row in measured[:2]]
    expected = sum(v for v, _ in ratio) / sum(s for _, s in ratio)  # with a decay of 0.5
    assert measured[1]["gradient_noise/scale"] == pytest.approx(expected, rel=1e-6)


def test_a_resumed_run_has_the_same_averages(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*WORDS, *HOOK, "micro_batch_size=15", "model.dropout=0.2", "save_every=1")
    whole, resumed = whole_and_resumed(train, monkeypatch, words, stop_at=2)
    assert rows(whole) == rows(resumed)
    assert_same_state(weights(whole), weights(resumed))


def test_a_batch_that_is_skipped_is_in_no_average(train: Train, tmp_path: Path) -> None:
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    damaged = inputs.clone()
    damaged[0, 0] = torch.nan
    targets = torch.arange(16) % 2
    torch.save({"inputs": damaged, "targets": targets}, tmp_path / "train.pt")
    torch.save({"inputs": inputs, "targets": targets}, tmp_path / "val.pt")
    files = (f"data.train={tmp_path / 'train.pt'}", f"data.val={tmp_path / 'val.pt'}")
    data = ("data=tensors", *files, "data.num_classes=2", "data.input_shape=[4]")
    words = (
        *WORDS,
        *HOOK,
        *data,
        "limit_train_samples=null",
        "global_batch_size=8",
        "duration=4",
        "skip_non_finite=true",
    )
    run = train(*words, name="skipped")
    measured = [row for row in rows(run) if "gradient_noise/variance" in row]
    variances = [row["gradient_noise/variance"] for row in measured]
    missing = [variance is None for variance in variances]
    assert missing == [True, False, False, True]  # the NaN, once an epoch
    assert ["gradient_noise/scale" in row for row in measured] == [False, True, True, True]


def test_the_size_that_the_refusal_names_is_accepted() -> None:
    words = ["hook=gradient_noise", "global_batch_size=all", "limit_train_samples=1437"]
    with pytest.raises(ConfigError, match="write micro_batch_size=479 or a divisor of it"):
        prepare(check(compose(words)))
    prepare(check(compose([*words, "micro_batch_size=479"])))
