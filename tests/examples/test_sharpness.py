"""The largest eigenvalue of the Hessian is exact, and measuring it leaves the training as it is."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from example_projects import use_example
from run_folders import assert_same_state, rows, weights
from training_runs import DIGITS, Train

from examples.papers.curvature import largest_eigenvalue
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError
from hydrant.training.prepare.build import prepare
from hydrant.training.trainer import Plan

LINEAR = (*DIGITS, "model.hidden=[]", "model.dropout=0", "limit_train_samples=70", "duration=2", "global_batch_size=70",
          "micro_batch_size=35", "log_every=1", "eval_every=null", "eval_batch_size=32")  # fmt: skip
MEASURED = ("hook=sharpness", "hooks.sharpness.every=1", "hooks.sharpness.num_samples=null",
            "hooks.sharpness.float64=true", "hooks.sharpness.max_iterations=200")  # fmt: skip


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> None:
    use_example("papers", monkeypatch)


@pytest.mark.parametrize("size", [1, 2, 30])
def test_it_is_exact_on_a_quadratic(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    values = torch.randn(size, generator=generator, dtype=torch.float64)
    basis, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    for scale in (1.0, 1e-6, 1e6):
        matrix = scale * basis @ torch.diag(values) @ basis.T
        found = largest_eigenvalue(matrix.mv, torch.ones(size, dtype=torch.float64), 100)
        assert found == pytest.approx(float(scale * values.max()), rel=1e-6)
    assert largest_eigenvalue(torch.zeros_like, torch.ones(size), 5) == 0
    assert largest_eigenvalue(lambda v: -2 * v, torch.ones(size), 5) == pytest.approx(-2)


def hessian_of_run(folder: Path, plan: Plan, update: int) -> torch.Tensor:
    state = weights(folder, f"update_{update:08d}")
    names, shapes = list(state), [tensor.shape for tensor in state.values()]
    batch = next(iter(plan.data.train.batches(plan.spec, 70)))
    inputs = batch.inputs.flatten(1).double()

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([shape.numel() for shape in shapes])
        named = {n: p.view(shape) for n, p, shape in zip(names, parts, shapes, strict=True)}
        return F.cross_entropy(
            inputs @ named["classifier.weight"].T + named["classifier.bias"], batch.targets
        )

    order = [name for name, _ in plan.task.model.named_parameters()]
    names, shapes = order, [state[name].shape for name in order]
    point = torch.cat([state[n].reshape(-1) for n in order]).double()
    dense = torch.autograd.functional.hessian(loss, point, vectorize=True)
    assert isinstance(dense, torch.Tensor)
    return dense


def test_it_is_that_of_the_dense_hessian_and_the_training_is_the_same(train: Train) -> None:
    words = (*LINEAR, "optimizer=adam", "save_every=1", "keep_last=9")
    plain = train(*words, name="plain")
    run = train(*words, *MEASURED, "hooks.sharpness.preconditioned=true", name="measured")
    assert_same_state(weights(plain), weights(run))
    plan = prepare(check(compose(words)))
    measured = [row for row in rows(run) if "sharpness/hessian" in row]
    assert [row["num_updates"] for row in measured] == [1, 2]
    for row in measured:
        hessian = hessian_of_run(run, plan, row["num_updates"])
        assert row["sharpness/hessian"] == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-3)
    loss = plan.task(next(iter(plan.data.train.batches(plan.spec, 70)))).total_loss()
    gradient = torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(loss, list(plan.task.model.parameters()))]
    )
    scale = (0.1 * (gradient.double().abs() + 1e-8)).rsqrt()  # of the first update of Adam
    hessian = scale[:, None] * hessian_of_run(run, plan, 1) * scale
    expected = float(torch.linalg.eigvalsh(hessian)[-1])
    assert measured[0]["sharpness/preconditioned"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    "words",
    [
        ("data=digits", "model=convnet", "model.widths=[4]", "global_batch_size=32"),
        ("data=modular", "data.modulus=11", "data.vocab_size=13", "model=gpt", "model.num_layers=1", "model.width=16",
         "model.num_heads=2", "model.dropout=0.1", "task.class_dim=-1", "task.ignore_index=-100",
         "global_batch_size=16"),
        pytest.param(("data=digits", "compile=aot_eager", "model.hidden=[8]", "global_batch_size=32"),
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_training_is_the_same_with_it(words: tuple[str, ...], train: Train) -> None:
    words = (
        "tracker=local",
        *words,
        "duration=3",
        "eval_every=null",
        "limit_train_samples=50",
        "precision=bf16",
        "log_every=1",
    )
    hook = ("hook=sharpness", "hooks.sharpness.every=1", "hooks.sharpness.max_iterations=2")
    run = train(*words, *hook, name="measured")
    assert_same_state(weights(train(*words, name="plain")), weights(run))
    assert all(row["sharpness/hessian"] != 0 for row in rows(run) if "train/loss" in row)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("hooks.sharpness.num_samples", ["hooks.sharpness.num_samples=0"]),
        ("hooks.sharpness.max_iterations", ["hooks.sharpness.max_iterations=0"]),
        ("hooks.sharpness.preconditioned", ["hooks.sharpness.preconditioned=true", "optimizer=sgd"]),
        ("hooks.sharpness.preconditioned", ["hooks.sharpness.preconditioned=true", "optimizer.amsgrad=true"]),
        ("hooks.gradient_noise.decay", ["hooks.gradient_noise.decay=1.0", "micro_batch_size=8"]),
        ("hooks.gradient_noise.decay", ["hooks.gradient_noise.decay=-0.1", "micro_batch_size=8"]),
        ("hooks.gradient_noise._target_", []),
        ("hooks.gradient_noise._target_", ["global_batch_size=1"]),
        ("hooks.gradient_noise._target_", ["experiment=two_models", "optimizers.first.losses=[loss0]",
                                           "micro_batch_size=8"]),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused_with_its_key(key: str, words: list[str]) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}: "):
        prepare(check(compose([f"hook={key.split('.')[1]}", *words])))
