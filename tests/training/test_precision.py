"""Training in bfloat16, float8 and float64. test_nonfinite.py and data/test_mnist_amp.py cover fp16."""

import json
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from marks import slow
from run_folders import assert_same_state, rows, summary, weights
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from training_runs import Train, whole_and_resumed

import hydrant
from hydrant import cli, seeding
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.data.base import SampleOrder
from hydrant.training.prepare.build import prepare

SHORT = ("tracker=local", "model.hidden=[32]", "duration=6", "log_every=1", "eval_every=3", "save_every=3")


@pytest.mark.usefixtures("without_gpu")
def test_bf16_true_is_the_plain_loop_bit_for_bit(train: Train) -> None:
    words = (*SHORT, "precision=bf16_true", "optimizer=adamw", "scheduler=constant")
    saved = weights(train(*words))
    p = prepare(check(compose(words)))
    task: Any = p.task
    model = task.model.to(torch.bfloat16)
    settings = {k: v for k, v in p.config["optimizer"].items() if not k.startswith("_")}
    settings["fused"] = True
    optimizer, stream = torch.optim.AdamW(model.parameters(), **settings), p.data.train.stream(p.spec)
    for n in range(6):
        (batch,) = stream.micro_batches(n)
        seeding.seed_micro_step(0, n, 0, torch.device("cpu"))
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs.to(torch.bfloat16)).float(), batch.targets).backward()
        optimizer.step()
    assert {value.dtype for value in saved.values()} == {torch.bfloat16}
    assert_same_state(dict(model.state_dict()), saved)


@pytest.mark.parametrize(
    "words",
    [("precision=bf16_true",), *slow((("precision=fp64",),), (("precision=fp8", "precision.emulate=true"),))],
)
def test_a_resumed_run_is_exact_and_evaluates_to_the_same(
    words: tuple[str, ...], train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, half = whole_and_resumed(train, monkeypatch, (*SHORT, *words), 4)
    assert rows(whole) == rows(half)
    assert_same_state(weights(whole), weights(half))
    capsys.readouterr()
    assert cli.main(["evaluate", str(whole), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["val/loss"] == summary(whole)["metrics"]["val/loss"]


def test_fp8_rounds_the_products_of_suitable_layers(train: Train) -> None:
    """The layer of 64 x 32 is converted, the classifier of 32 x 10 is not; names in checkpoints do not change."""
    exact = train(*SHORT, "precision=bf16", name="exact")
    for recipe in ("tensorwise", "rowwise"):
        fp8 = train(*SHORT, "precision=fp8", f"precision.fp8={recipe}", "precision.emulate=true", name=recipe)
        assert weights(exact).keys() == weights(fp8).keys()
        one, other = rows(exact)[-1]["train/loss"], rows(fp8)[-1]["train/loss"]
        assert one != other
        assert one == pytest.approx(other, rel=0.1)


def test_every_constant_of_the_loss_scaler_is_a_key() -> None:
    keys = {"init_scale": 8.0, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 5}
    words = [f"precision.{key}={value}" for key, value in keys.items()]
    state = prepare(check(compose(["precision=fp16", *words]))).precision.state_dict()
    assert state.pop("scale") == keys.pop("init_scale")
    assert {key: state[key] for key in keys} == keys


def test_a_restored_loss_scaler_has_the_scale_of_the_checkpoint_and_the_factors_of_the_config() -> None:
    old, new = (
        prepare(check(compose(["precision=fp16", f"precision.growth_factor={n}.0"]))).precision
        for n in (2, 4)
    )
    old.load_state_dict(old.state_dict() | {"scale": 8.0})
    new.load_state_dict(old.state_dict())
    assert new.state_dict() == {**old.state_dict(), "growth_factor": 4.0}


def _in_double(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
    updates: int,
    micro: int,
) -> dict[str, Tensor]:
    """Train in a plain loop over the samples of each update, in micro-batches; return the weights."""
    order, size = SampleOrder(0, len(inputs), torch.device("cpu")), 24
    for update in range(updates):
        draws = [order.draws(update * size + at, micro) % len(inputs) for at in range(0, size, micro)]

        def closure(draws: list[Tensor] = draws) -> Tensor:
            optimizer.zero_grad()
            losses = [F.mse_loss(model(inputs[rows]).squeeze(-1), targets[rows]) for rows in draws]
            for loss in losses:
                loss.backward(torch.tensor(1 / len(losses), dtype=torch.float64))
            return sum(loss.detach() * micro for loss in losses) / size

        optimizer.step(closure)  # type: ignore[arg-type]
    return dict(model.state_dict())


@pytest.mark.usefixtures("workdir", "without_gpu")
@pytest.mark.parametrize(
    ("option", "updates", "micro", "in_file"), [*slow(("lbfgs", 5, 24, False)), ("adamw", 20, 8, True)]
)
def test_fp64_is_a_loop_in_double_to_the_last_digit(
    option: str, updates: int, micro: int, in_file: bool
) -> None:
    inputs = torch.linspace(-1, 1, 48, dtype=torch.float64).view(-1, 1)  # hardly any of them is a float32
    targets = (3 * inputs[:, 0]).sin() / 7
    words = ["precision=fp64", "task=regression", "tracker=local", f"optimizer={option}", "scheduler=constant",
             f"duration={updates}", "global_batch_size=24", f"micro_batch_size={micro}"]  # fmt: skip
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    data = None if in_file else (TensorDataset(inputs, targets),) * 2
    if in_file:
        torch.save({"inputs": inputs, "targets": targets}, "sines.pt")
        words += ["data=tensors", "data.train=sines.pt", "data.val=sines.pt", "data.input_shape=[1]"]
    config = hydrant.compose(words)
    run = hydrant.train(config, model=model, data=data)
    # The kernel is named below: the option's own `fused` would replace it, and the other kernel rounds otherwise.
    settings = {k: v for k, v in dict(config["optimizer"]).items() if not k.startswith("_") and k != "fused"}
    kinds: dict[str, Any] = {"lbfgs": torch.optim.LBFGS, "adamw": partial(torch.optim.AdamW, fused=True)}
    model = model.double()
    optimizer = kinds[option](model.parameters(), **settings)
    expected = _in_double(model, optimizer, inputs, targets, updates, micro)
    saved = weights(run.folder)
    assert {value.dtype for value in saved.values()} == {torch.float64}
    assert_same_state(expected, saved)
    assert run.evaluate()["val/loss"] == summary(run.folder)["metrics"]["val/loss"]
