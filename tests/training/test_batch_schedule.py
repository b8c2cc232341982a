"""`global_batch_size` that changes at declared updates: samples, gradients, resume, ranks, compile."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from marks import of_extension, slow
from ranks import run_on_ranks
from run_folders import assert_close_rows, assert_same_state, rows, saved, summary, weights
from sources import CPU, as_input, in_memory, joined, same
from training_runs import DIGITS, Train, whole_and_resumed

from hydrant import cli
from hydrant.clock import Steps
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.data import LoaderSource, Source, StreamSpec
from hydrant.errors import ConfigError
from hydrant.training.prepare.build import prepare

GROWING = (*DIGITS, "global_batch_size={0: 32, 3: 64, 7: 96}", "duration=12")
SIZES = Steps((0, 2, 5), (8, 12, 4))


def _source(name: str, num_workers: int = 2) -> Source:
    if name == "stream":
        from hydrant.extensions.streams import IterableSource

        return IterableSource([(torch.tensor([float(n)]), n) for n in range(30)], 30, num_workers=0)
    items = [(n, n) for n in range(50)]
    return (
        in_memory()
        if name == "memory"
        else LoaderSource(items, as_input, as_input, (0.0,), (1.0,), num_workers)
    )


@pytest.mark.parametrize("name", ["memory", "loader", *of_extension("stream")])
@pytest.mark.parametrize(("micro_batch_size", "world_size"), [*slow((4, 1)), (2, 1), (2, 2)])
def test_updates_have_the_samples_that_follow_one_another(
    name: str, micro_batch_size: int, world_size: int
) -> None:
    """The updates together have the samples of a stream of single samples, on any number of ranks."""
    source, single = _source(name), _source(name, 0)
    one = single.stream(StreamSpec(3, Steps.constant(1), 1, 0, 1, CPU))
    streams = [
        source.stream(StreamSpec(3, SIZES, micro_batch_size, rank, world_size, CPU))
        for rank in range(world_size)
    ]
    for num_updates in range(8):
        parts = [list(stream.micro_batches(num_updates)) for stream in streams]
        batches = [parts[rank][step] for step in range(len(parts[0])) for rank in range(world_size)]
        places = range(SIZES.total(num_updates), SIZES.total(num_updates + 1))
        expected = [batch for place in places for batch in one.micro_batches(place)]
        assert same(joined(batches), joined(expected))
    for stream in (*streams, one):
        stream.close()


@pytest.mark.parametrize("name", ["memory", "loader"])
def test_an_update_has_the_same_samples_wherever_reading_begins(name: str) -> None:
    spec = StreamSpec(3, SIZES, 4, 0, 1, CPU)
    stream = _source(name).stream(spec)
    whole = [joined(stream.micro_batches(n)) for n in range(9)]
    for num_updates in (7, 2, 5):
        jumped = _source(name).stream(spec)
        assert same(joined(jumped.micro_batches(num_updates)), whole[num_updates])
        assert same(joined(stream.micro_batches(num_updates)), whole[num_updates])
        jumped.close()
    stream.close()


def test_training_equals_a_loop_over_batches_that_grow(train: Train) -> None:
    """The learning rate stays the same, and the loss of an update is the mean over its samples."""
    words = (*GROWING, "optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0", "optimizer.weight_decay=0",
             "scheduler=constant", "model.dropout=0", "micro_batch_size=16", "save_every=1",
             "keep_last=99")  # fmt: skip
    folder, plan = train(*words), prepare(check(compose(words)))
    model, sizes = plan.task.model.to(plan.world.device), plan.spec.batch_sizes
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stream = plan.data.train.stream(replace(plan.spec, batch_sizes=Steps.constant(1), micro_batch_size=1))
    assert sizes == Steps((0, 3, 7), (32, 64, 96))
    for num_updates in range(12):
        places = range(sizes.total(num_updates), sizes.total(num_updates + 1))
        inputs, targets = zip(
            *(batch for place in places for batch in stream.micro_batches(place)), strict=True
        )
        optimizer.zero_grad()
        F.cross_entropy(model(torch.cat(inputs)), torch.cat(targets)).backward()
        optimizer.step()
        for name, value in weights(folder, f"update_{num_updates + 1:08d}").items():
            torch.testing.assert_close(value, model.state_dict()[name].cpu(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("stop_at", [5, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 7))])
def test_a_resumed_run_equals_an_uninterrupted_one(
    stop_at: int, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*GROWING, "log_every=2", "save_every=96sa", "averaging=ema")
    whole, half = whole_and_resumed(train, monkeypatch, words, stop_at)
    assert rows(whole) == rows(half)
    for part in ("model", "ema", "training"):
        assert_same_state(saved(whole, part), saved(half, part))


def test_rows_and_epochs_count_the_samples_of_every_update(train: Train) -> None:
    logged = rows(train(*GROWING, "log_every=1", "eval_every=null", "duration=0.5ep"))
    sizes = Steps((0, 3, 7), (32, 64, 96))
    assert [row["optim/global_batch_size"] for row in logged] == [sizes.value(n) for n in range(len(logged))]
    assert [row["epoch"] for row in logged] == [sizes.total(n + 1) / 1437 for n in range(len(logged))]
    assert logged[-2]["epoch"] < 0.5 <= logged[-1]["epoch"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("global_batch_size={0: 32, 3: 0}",), "global_batch_size: needs a whole number of 1 or more"),
        (("global_batch_size={0: 32, 3: 1e3}",), "global_batch_size: needs a whole number"),
        (("global_batch_size={0: 32, x: 64}",), "global_batch_size: 'x' is not a duration"),
        (("global_batch_size={2: 32, 3: 64}",), "global_batch_size: 32 cannot begin at '2'"),
        (("global_batch_size={0: 32, 3: 9999}",), "global_batch_size: 9999 is more than the 1437"),
        (
            ("micro_batch_size=64",),
            "micro_batch_size: 64 samples .* global_batch_size=32, 64, 96; these do: 1, 2",
        ),
        (("lr_scaling=linear",), "lr_scaling: scales to one number of samples, not to global_batch_size={"),
    ],
)
def test_schedules_that_cannot_work_are_refused(
    words: tuple[str, ...], message: str, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    growing = () if words[0].startswith("global_batch_size") else GROWING
    train(*DIGITS, *growing, *words, status=2)
    assert re.search(message, capsys.readouterr().err)


def test_preview_shows_where_the_sizes_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["preview", *GROWING]) == 0
    shown = capsys.readouterr().out
    assert "12 of 32 (from update 3 on 64, from update 7 on 96) samples: 0.579 epochs" in shown
    assert "32 samples x 1 to 2 to 3 x 1 rank(s)" in shown


@pytest.mark.slow
@pytest.mark.parametrize("micro", [(), ("micro_batch_size=20",)])
def test_an_update_of_all_samples_has_the_mean_gradient_of_the_training_set(
    train: Train, micro: tuple[str, ...]
) -> None:
    words = (*DIGITS, "global_batch_size=all", "limit_train_samples=60", *micro, "optimizer=sgd", "optimizer.lr=0.5",
             "optimizer.momentum=0", "optimizer.weight_decay=0", "scheduler=constant", "model.dropout=0",
             "duration=3ep", "log_every=1", "eval_every=null")  # fmt: skip
    folder, plan = train(*words), prepare(check(compose(words)))
    model = plan.task.model.to(plan.world.device)
    inputs, targets = joined(plan.data.train.batches(plan.spec, 60))
    trained = [row for row in rows(folder) if "train/loss" in row]
    assert [(row["num_updates"], row["epoch"]) for row in trained] == [(1, 1), (2, 2), (3, 3)]
    for row in trained:
        loss = F.cross_entropy(model(inputs), targets)
        assert row["train/loss"] == pytest.approx(loss.item(), rel=1e-5)
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            parameter.data -= 0.5 * gradient
    for name, value in weights(folder).items():
        torch.testing.assert_close(value, model.state_dict()[name].cpu(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["lr_scaling=linear"],
            r"^lr_scaling: scales to one number of samples, not to global_batch_size=all",
        ),
        (["micro_batch_size=7"], r"^micro_batch_size: 7 samples .* do not divide global_batch_size=60"),
        (["parallel.num_processes=7"], r"^limit_train_samples: 60 is not divisible by 7 ranks; 56 or 63 is"),
        (
            ["parallel.num_processes=7", "limit_train_samples=null"],
            r"1437 is not divisible by 7 ranks; 1435 is",
        ),
    ],
)
def test_what_all_samples_do_not_allow_is_refused(words: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        prepare(check(compose(["global_batch_size=all", "limit_train_samples=60", *words])), is_preview=True)


def test_the_updates_are_the_same_on_two_ranks(train: Train, workdir: Path) -> None:
    words = (*GROWING, "micro_batch_size=16", "log_every=1", "model.dropout=0.1")
    one = train(*words, name="one")
    run_on_ranks(2, workdir, [("train", "name=two", *words)])
    assert_close_rows(one, workdir / "outputs" / "two")


@pytest.mark.extension
@pytest.mark.slow
def test_a_compiled_run_is_not_compiled_again(train: Train) -> None:
    folder = train(*GROWING, "compile=default")
    assert summary(folder)["compile"]["recompiles"] == 0
