"""Updates of several models, losses and optimizers equal a loop written by hand."""

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from marks import slow
from PIL import Image
from run_folders import assert_same_state, rows, saved, summary, weights
from sklearn.neighbors import KNeighborsClassifier
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_runs import Train, whole_and_resumed

from hydrant import cli
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.training.prepare.build import prepare
from hydrant.training.prepare.rehearsal import read_samples

TWO = ("experiment=two_models", "model.modules.first.hidden=[16]", "model.modules.second.hidden=[24]",
       "tracker=local", "duration=12", "log_every=4", "eval_every=6", "save_every=6")  # fmt: skip
LARGE_GAN = ("experiment=gan_digits", "tracker=local")
GAN = (*LARGE_GAN, "model.modules.generator.hidden=[16]", "model.modules.discriminator.hidden=[16]")


@pytest.mark.extension
@pytest.mark.parametrize(
    ("precision", "init_scale"), [("fp16", 2.0**10), *slow(("fp32", 1.0), ("bf16", 1.0), ("fp16", 2.0**26))]
)
def test_two_models_equal_a_plain_loop_bit_for_bit(precision: str, init_scale: float, train: Train) -> None:
    words = (*TWO, f"precision={precision}", f"precision.init_scale={init_scale}")
    folder = train(*words)
    plan = prepare(check(compose(words)))
    torch.manual_seed(0)  # dropout is seeded below
    device = plan.world.device
    task: Any = plan.task.to(device)
    first, second = task.model["first"], task.model["second"]
    settings = {k: v for k, v in plan.config["optimizer"].items() if not k.startswith("_") and k != "lr"}
    settings["fused"] = True
    optimizer0 = torch.optim.SGD(first.parameters(), lr=0.01, **settings)
    optimizer1 = torch.optim.SGD(second.parameters(), lr=0.003, **settings)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    scaler = torch.amp.GradScaler(device.type, init_scale=init_scale, enabled=precision == "fp16")
    stream, n, num_skipped = plan.data.train.stream(plan.spec), 0, 0
    while n < plan.clock.total_updates:
        (batch,) = stream.micro_batches(n)
        seed_like_the_run(n, device)
        optimizer0.zero_grad()
        optimizer1.zero_grad()
        with torch.autocast(device.type, dtype=dtype, enabled=precision != "fp32"):
            output0, output1 = first(batch.inputs), second(batch.inputs)
            # Autocast alone would compute these in float32 on a CPU, and round the logarithms to fp16 on CUDA.
            loss0 = F.cross_entropy((2 * output0 + 3 * output1).float(), batch.targets)
            loss1 = F.cross_entropy((3 * output0 - 5 * output1).float(), batch.targets)
        scaler.scale(loss0).backward(retain_graph=True)
        scaler.scale(loss1).backward()
        scaler.unscale_(optimizer0)
        torch.nn.utils.clip_grad_norm_(first.parameters(), 1.0)
        if all(p.grad.isfinite().all() for p in task.model.parameters()):
            scaler.step(optimizer0)
            scaler.step(optimizer1)
            n += 1
        else:
            scaler.unscale_(optimizer1)  # the scaler records which one overflowed
            num_skipped += 1
        scaler.update()
    assert (num_skipped > 0) == (init_scale > 2**20)
    assert rows(folder)[-1].get("optim/num_skipped", 0) == num_skipped
    assert_same_state({name: value.cpu() for name, value in task.model.state_dict().items()}, weights(folder))


def seed_like_the_run(num_updates: int, device: torch.device) -> None:
    from hydrant import seeding

    seeding.seed_micro_step(0, num_updates, 0, device)


@pytest.mark.extension
def test_each_optimizer_has_its_own_metrics(train: Train) -> None:
    last = rows(train(*TWO, "optimizers.second.optimizer.lr=0.5"))[-1]
    assert (last["optim/first/lr"], last["optim/second/lr"]) == (0.01, 0.5)
    assert last["optim/first/grad_norm"] > 0
    assert last["optim/second/grad_norm"] > 0
    assert "optim/lr" not in last


@pytest.mark.usefixtures("gan")
@pytest.mark.parametrize("follows", [{"generator": "generator", "discriminator": "discriminator"},
                                     {"generator": None, "discriminator": "generator"},
                                     {"generator": None, "discriminator": "discriminator"}])  # fmt: skip
def test_a_model_follows_only_its_losses(follows: dict[str, str | None], train: Train) -> None:
    """One update of plain gradient descent subtracts the gradient of the followed loss; None is the sum of both."""
    losses = [
        f"optimizers.{name}.losses={'null' if loss is None else f'[{loss}]'}"
        for name, loss in follows.items()
    ]
    words = (*GAN, "optimizer=sgd", "optimizer.momentum=0", "optimizer.lr=1",
             "scheduler=constant", "duration=1", "eval_every=null", "model.modules.discriminator.dropout=0",
             *losses)  # fmt: skip
    updated = weights(train(*words))
    plan: Any = prepare(check(compose(words)))
    plan.task.to(plan.world.device)
    (batch,) = plan.data.train.stream(plan.spec).micro_batches(0)
    seed_like_the_run(0, plan.world.device)
    outcome = plan.task(batch)
    for name, loss in follows.items():
        parameters = dict(plan.task.model[name].named_parameters())
        wanted = outcome.total_loss() if loss is None else outcome.losses[loss]
        gradients = torch.autograd.grad(wanted, list(parameters.values()), retain_graph=True)
        for (key, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            assert gradient.abs().max() > 0
            torch.testing.assert_close(
                updated[f"{name}.{key}"], (parameter.detach() - gradient).cpu(), rtol=0, atol=1e-6
            )


@pytest.mark.extension
@pytest.mark.parametrize("stop_at", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 10))])
def test_everything_with_a_state_resumes_exactly_together(
    stop_at: int, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*TWO, "precision=fp16", "precision.init_scale=67108864.0", "precision.growth_interval=3",
             "averaging=ema", "averaging.decay=0.7", "mixing=mixup_cutmix", "scheduler=plateau",
             "scheduler.patience=0", "scheduler.threshold=0.5", "data.augment.max_shift=1", "micro_batch_size=16",
             "global_batch_size=32", "log_every=1", "eval_every=2",
             "+optimizer@optimizers.second.optimizer=adamw")  # fmt: skip
    whole, half = whole_and_resumed(train, monkeypatch, words, stop_at)
    last = rows(whole)[-1]
    assert last["optim/num_skipped"] > 0
    assert last["optim/second/lr"] < 0.003  # the plateau schedule has reduced it
    assert last["val_ema/loss"] != last["val/loss"]
    assert rows(whole) == rows(half)
    for part in ("model", "training", "ema"):
        assert_same_state(saved(whole, part), saved(half, part))


@pytest.mark.usefixtures("gan")
def test_every_evaluation_draws_the_same_noise(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(*GAN, "duration=3", "eval_every=3", "save_every=3")
    capsys.readouterr()
    assert cli.main(["evaluate", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    logged = summary(folder)["metrics"]
    assert {k: v for k, v in shown.items() if "/" in k} == {
        k: v for k, v in logged.items() if k.startswith("val/")
    }


@pytest.mark.usefixtures("gan")
@pytest.mark.slow
def test_the_gan_generates_digits_that_a_classifier_recognises(train: Train) -> None:
    folder = train(*LARGE_GAN, "tracker=tensorboard")
    plan: Any = prepare(check(compose([*LARGE_GAN])))
    # All of them, normalised.
    real, labels = read_samples(plan.data, plan.data.train, plan.data.train.num_samples)
    pixels = real.flatten(1).numpy()
    reader = KNeighborsClassifier(5).fit(pixels, labels.numpy())
    generator = plan.task.model["generator"]
    plan.task.model.load_state_dict(weights(folder, "best"))
    generator.eval()
    classes = torch.arange(10).repeat_interleave(100)
    with torch.no_grad():
        noise = torch.randn(1000, generator.latent_size, generator=torch.Generator().manual_seed(1))
        samples = generator(noise, classes).flatten(1)
    read = torch.from_numpy(reader.predict(samples.numpy()))
    assert (read == classes).float().mean() > 0.85
    spread = torch.stack([samples[classes == c].std(dim=0).mean() for c in range(10)])
    real_spread = torch.stack([torch.from_numpy(pixels)[labels == c].std(dim=0).mean() for c in range(10)])
    assert (spread > real_spread / 2).all()  # the samples of a class vary
    drawn = sorted((folder / "pictures" / "samples").iterdir())
    assert [path.name for path in drawn[:2]] == ["update_00000000.png", "update_00000450.png"]
    with Image.open(drawn[-1]) as picture:
        assert picture.size == (10 * 33 + 1, 8 * 33 + 1)
    events = EventAccumulator(str(folder / "tensorboard"), {"images": 0}).Reload()
    assert [event.step for event in events.Images("samples")][1:2] == [450]


@pytest.mark.extension
def test_an_optimizer_inherits_settings_from_the_top_level() -> None:
    words = (*TWO, "optimizer=adamw", "max_grad_value=2", "optimizers.first.max_grad_norm=null",
             "+scheduler@schedules.weight_decay=linear",
             "+scheduler@optimizers.first.schedules.eps=cosine")  # fmt: skip
    resolved = check(compose(words))
    first, second = resolved["optimizers"]["first"], resolved["optimizers"]["second"]
    assert first["optimizer"] == resolved["optimizer"]
    assert (set(first["schedules"]), set(second["schedules"])) == ({"weight_decay", "eps"}, {"weight_decay"})
    assert second["optimizer"] == resolved["optimizer"] | {"lr": 0.003}
    assert (first["max_grad_value"], first["scheduler"]) == (2, resolved["scheduler"])
    config = check(compose([*words, "+optimizer@optimizers.first.optimizer=sgd"]))
    assert config["optimizers"]["first"]["optimizer"]["_target_"] == "torch.optim.SGD"


def test_one_named_optimizer_equals_the_plain_one(train: Train) -> None:
    words = ("tracker=local", "model.hidden=[16]", "duration=4", "log_every=1", "save_every=4")
    plain = train(*words, name="plain")
    named = train(*words, "+optimizers.all.parts=null", name="named")
    assert_same_state(weights(plain), weights(named))


@pytest.mark.slow
@pytest.mark.extension
@pytest.mark.usefixtures("gan")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("experiment", [TWO, GAN], ids=["experiment=two_models", "gan"])
def test_several_losses_train_through_one_compiled_graph(
    experiment: tuple[str, ...], backend: str, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropouts = [f"model.modules.{name}.dropout=0" for name in ("first", "second", "discriminator")]
    no_dropout = dropouts[:2] if experiment is TWO else dropouts[2:]
    words = (*experiment, *no_dropout, "precision=fp32", "duration=6", "log_every=1", "eval_every=6")
    monkeypatch.setattr("torch.randn", linear_noise)  # a compiled graph draws other random numbers
    eager = train(*words, name="eager")
    compiled = train(*words, "compile=default", f"compile.backend={backend}", name="compiled")
    for one, other in zip(rows(eager), rows(compiled), strict=True):
        for key in one.keys() & other.keys():
            assert one[key] == pytest.approx(other[key], abs=1e-5), key
    assert rows(compiled)[-1]["compile/graphs"] == 1


def linear_noise(*shape: Any, **kwargs: Any) -> torch.Tensor:
    kwargs.pop("generator", None)
    size = shape[0] if isinstance(shape[0], tuple) else shape
    return torch.linspace(-1, 1, size[0] * size[1], **kwargs).view(size)
