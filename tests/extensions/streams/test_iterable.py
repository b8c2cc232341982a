"""A stream of the user's: its samples, its position in checkpoints, and what is refused."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from marks import slow
from ranks import run_on_ranks
from run_folders import assert_same_state, rows, weights
from sources import GLOBAL_BATCH_SIZE, joined, same, spec, update
from training_runs import Train, UserModule, interrupt_at, whole_and_resumed

from hydrant import seeding
from hydrant.data import LoaderSource
from hydrant.errors import ConfigError, DataError, HydrantError
from hydrant.extensions.streams import IterableSource, stream

MODULE = '''
import random

import torch

class Points:
    """Points of two classes, pass after pass of 20, with noise from a global generator."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        while self.position < 20:
            self.position += 1
            point = torch.randn(4, generator=torch.Generator().manual_seed(self.position))
            yield point + random.random(), int(point.sum() > 0)
        self.position = 0

class SavedPoints(Points):
    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]

def points(count):
    made = torch.randn(count, 4)
    return made + random.random(), (made.sum(1) > 0).long()
'''
DIVIDED = '''
import os

import torch
from own_stream import SavedPoints

class Divided(SavedPoints):
    """The same points, without noise, divided among the ranks as `datasets.distributed.split_by_node` does."""

    def __iter__(self):
        rank, num_ranks = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
        while self.position < 20:
            self.position += 1
            point = torch.randn(4, generator=torch.Generator().manual_seed(self.position))
            if self.position % num_ranks == rank:
                yield point, int(point.sum() > 0)
        self.position = 0
'''
STREAM = ("data=stream", "data.train._target_=own_stream.SavedPoints", "data.val._target_=own_stream.Points",
          "data.num_samples=40", "data.num_val_samples=10", "data.input_shape=[4]", "data.num_classes=2",
          "data.num_workers=0", "model.hidden=[4]", "tracker=local", "allow_targets=[own_stream]",
          "global_batch_size=8", "duration=2ep", "log_every=1", "eval_every=4", "save_every=4")  # fmt: skip


@pytest.fixture
def points(user_module: UserModule) -> tuple[str, ...]:
    """The overrides of a run over a stream of ten updates, which begins its passes in the middle of updates."""
    user_module("own_stream", MODULE)
    return STREAM


class Numbers:
    """The numbers below 30, and a random one; the position is saved."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[Any]:
        while self.next < 30:
            self.next += 1
            yield torch.tensor([self.next - 1, random.random()], dtype=torch.float64), self.next - 1
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Stateless:
    """The same numbers, without a position."""

    def __iter__(self) -> Iterator[Any]:
        yield from Numbers()


class Told(Stateless):
    """Tells how many of the numbers are an epoch."""

    num_samples, num_classes = 9, 4


def source(items: Any = None, num_workers: int = 0) -> IterableSource:
    return IterableSource(Numbers() if items is None else items, 30, num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_samples_are_those_of_the_stream_on_any_ranks(num_workers: int) -> None:
    whole = update(source(num_workers=num_workers), 3)
    assert whole[1].tolist() == [n % 30 for n in range(3 * GLOBAL_BATCH_SIZE, 4 * GLOBAL_BATCH_SIZE)]
    for world_size, micro_batch_size in ((1, 4), (2, 3), (3, 4)):
        parts = update(source(num_workers=num_workers), 3, world_size, micro_batch_size=micro_batch_size)
        assert same(parts, whole)


@pytest.mark.parametrize(
    ("items", "num_workers"), [(Numbers, 0), (Stateless, 0), (Numbers, 1), *slow((Stateless, 1))]
)
def test_an_update_can_be_read_again(items: Any, num_workers: int) -> None:
    training = source(items(), num_workers).stream(spec(micro_batch_size=4))
    in_order = [joined(training.micro_batches(n)) for n in range(5)]
    for num_updates in (2, 4, 4, 0):  # backwards, forwards, repeated
        assert same(joined(training.micro_batches(num_updates)), in_order[num_updates])
    for batch in training.micro_batches(1):  # an fp16 overflow, after the model wrote into its inputs
        batch.inputs.zero_()
    assert same(joined(training.micro_batches(1)), in_order[1])
    next(iter(training.micro_batches(2)))
    assert same(joined(training.micro_batches(3)), in_order[3])
    training.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_position_is_that_of_completed_updates(num_workers: int) -> None:
    """What a worker reads ahead does not count, nor an update whose batches were only looked at."""
    numbers = source(num_workers=num_workers)
    training, parts = numbers.stream(spec()), list[Any]()
    assert training.state_dict(0) == {"num_updates": 0, "items": {"next": 0}}
    parts = [joined(training.micro_batches(n)) for n in range(4)]
    assert training.state_dict(4)["items"] == {"next": 4 * GLOBAL_BATCH_SIZE % 30}
    position = training.state_dict(3)
    assert position == {"num_updates": 3, "items": {"next": 3 * GLOBAL_BATCH_SIZE % 30}}
    training.close()
    resumed = source(num_workers=num_workers).stream(spec())
    resumed.load_state_dict(position)
    assert resumed.state_dict(3) == position
    assert same(joined(resumed.micro_batches(3)), parts[3])
    resumed.close()


def test_readers_of_one_stream_do_not_disturb_each_other() -> None:
    numbers = source()
    training, whole = numbers.stream(spec()), [update(source(), n) for n in range(3)]
    assert same(joined(training.micro_batches(0)), whole[0])
    assert joined(numbers.batches(spec(), 7))[1].tolist() == list(range(30))
    assert same(joined(training.micro_batches(1)), whole[1])
    assert same(joined(numbers.stream(spec()).micro_batches(0)), whole[0])
    assert same(joined(training.micro_batches(2)), whole[2])


def test_reading_does_not_change_the_global_generators() -> None:
    random.seed(1), torch.manual_seed(1)
    expected = random.random(), torch.rand(()).item()
    random.seed(1), torch.manual_seed(1)
    update(source(), 0)
    joined(source().batches(spec(), 4))
    assert (random.random(), torch.rand(()).item()) == expected


def test_the_end_of_a_pass_is_a_position() -> None:
    training = IterableSource(Numbers(), 30, num_workers=0).stream(spec())
    training.load_state_dict({"num_updates": 5, "items": {"next": 30}})
    assert joined(training.micro_batches(5))[1].tolist() == list(range(GLOBAL_BATCH_SIZE))


def test_a_function_makes_the_samples_of_each_epoch_once() -> None:
    calls = list[int]()

    def make(count: int) -> Any:
        calls.append(count)
        return torch.rand(count, 2, dtype=torch.float64) + random.random(), torch.arange(count)

    epochs, data = list[Any](), own(make, val=make, test=make, num_val_samples=30)
    for epoch in range(4):
        seeding.seed_host(spec().seed, seeding.SAMPLE, epoch)
        epochs.append(make(30))
    expected = [torch.cat(parts) for parts in zip(*epochs, strict=True)]
    assert len(calls) == 4 + 2
    training = data.train.stream(spec())
    inputs, targets = joined(batch for n in range(10) for batch in training.micro_batches(n))
    assert same((inputs, targets), (expected[0].float(), expected[1]))
    assert calls == 10 * [30]
    for world_size, micro_batch_size in ((1, 4), (2, 3), (3, 4)):  # update 7 has samples of two epochs
        parts = update(data.train, 7, world_size, micro_batch_size=micro_batch_size)
        assert same(parts, (inputs[84:96], targets[84:96]))
    evaluated = [joined(part.batches(spec(), 7))[0] for part in (data.val, data.test, data.train)]
    assert len({float(part.sum()) for part in (*evaluated, inputs[:30])}) == 4


class Broken(Stateless):
    def __iter__(self) -> Iterator[Any]:
        yield torch.zeros(2), 0
        raise ValueError("no connection")


class Empty(Stateless):
    def __iter__(self) -> Iterator[Any]:
        yield from ()


def own(train: Any, **changes: Any) -> Any:
    settings: dict[str, Any] = {"val": Stateless(), "test": None, "extra_val": {}, "num_samples": 30,
                                "num_val_samples": 5, "target": None, "collate": None, "input_shape": None,
                                "num_classes": None, "num_workers": 0, "divided": False}  # fmt: skip
    return stream(train=train, **settings | changes)


@pytest.mark.parametrize("num_workers", [0, *slow(1)])
@pytest.mark.parametrize(
    ("items", "message"),
    [
        (Broken, r"item 1 of data.train cannot be read: ValueError: no connection \(at test_iterable.py"),
        (Empty, "data.train gives no items"),
    ],
)
def test_a_stream_that_fails_is_named(items: Any, message: str, num_workers: int) -> None:
    training = source(items(), num_workers).stream(spec())
    with pytest.raises(DataError, match=message):
        next(iter(training.micro_batches(0)))
    training.close()


@pytest.mark.parametrize(
    ("train", "changes", "error", "message"),
    [
        (iter([1]), {}, ConfigError, "data.train: a list_iterator cannot begin again"),
        (Numbers(), {"num_val_samples": None}, ConfigError, "data.num_val_samples: data.val is a Stateless"),
        (Stateless(), {"num_samples": None}, ConfigError, "data.num_samples: data.train is a Stateless"),
        (Numbers(), {"num_val_samples": 31}, ConfigError, "31 samples are needed, but data.val ends after 30"),
        (Numbers(), {"val": Broken(), "num_val_samples": 2}, DataError, "item 1 of data.val cannot be read"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    train: Any, changes: dict[str, Any], error: type[HydrantError], message: str
) -> None:
    with pytest.raises(error, match=message):
        own(train, **changes)


def test_evaluation_takes_a_map_style_set_or_the_first_items() -> None:
    pairs = [(torch.tensor([n]), n) for n in range(7)]
    data = own(Numbers(), val=pairs, test=Stateless(), extra_val={"few": pairs[:3], "stream": Stateless()})
    assert {name: part.num_samples for name, part in data.extra_val.items()} == {"few": 3, "stream": 5}
    told = own(Told(), val=Told(), num_samples=None, num_val_samples=None)
    assert (told.train.num_samples, told.val.num_samples, told.num_classes) == (9, 9, 4)
    assert joined(data.val.batches(spec(), 3))[1].tolist() == list(range(7))
    assert joined(data.test.batches(spec(), 3))[1].tolist() == list(range(5))
    assert isinstance(data.train.subset(range(4)), LoaderSource)  # limit_train_samples
    with pytest.raises(ConfigError, match="of which only the first samples can be taken"):
        data.train.subset(range(1, 4))


@pytest.mark.parametrize(
    "more", [("data.num_workers=1", "micro_batch_size=4", "precision=fp16"), *slow(((),))]
)
def test_a_run_over_a_stream_resumes_exactly(
    more: tuple[str, ...], points: tuple[str, ...], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, resumed = whole_and_resumed(train, monkeypatch, (*points, *more), 7)
    assert_same_state(weights(resumed), weights(whole))
    assert rows(resumed) == rows(whole)


def test_a_run_over_a_function_resumes_exactly_without_workers(
    points: tuple[str, ...], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = [
        word
        for key in ("train", "val")
        for word in (f"data.{key}._target_=own_stream.points", f"+data.{key}._partial_=true")
    ]
    words = (*points, *functions, "data.num_workers=1")
    monkeypatch.setattr("hydrant.data.workers.WorkerLoader", None)
    whole, resumed = whole_and_resumed(train, monkeypatch, words, 7)
    assert_same_state(weights(resumed), weights(whole))
    assert rows(resumed) == rows(whole)


def test_a_stream_without_a_position_trains_but_is_not_resumed(
    points: tuple[str, ...], train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*points, "data.train._target_=own_stream.Points")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        folder = train(*words, status=130)
    warning = "data.train has no state_dict and load_state_dict: this run cannot be resumed"
    output = capsys.readouterr()
    assert warning in output.out
    assert output.err.endswith("it cannot be continued, because its stream of samples has no state_dict\n")
    before = sorted(path.stat().st_mtime_ns for path in folder.rglob("*.json*"))
    train(*words, status=2)
    assert "resume: data.train has no state_dict and load_state_dict" in capsys.readouterr().err
    assert sorted(path.stat().st_mtime_ns for path in folder.rglob("*.json*")) == before


def test_a_position_that_checkpoints_cannot_hold_is_refused_before_the_start(
    points: tuple[str, ...], train: Train, user_module: UserModule, capsys: pytest.CaptureFixture[str]
) -> None:
    user_module("own_strange", "from own_stream import SavedPoints\n\nclass Strange(SavedPoints):\n"
                "    def state_dict(self):\n        return {'place': object(), **super().state_dict()}\n")  # fmt: skip
    folder = train(*points, "data.train._target_=own_strange.Strange",
                   "allow_targets=[own_stream,own_strange]", status=2)  # fmt: skip
    assert "place cannot be saved: object is not a plain type" in capsys.readouterr().err
    assert not (folder / "config.yaml").exists()


@pytest.mark.slow
def test_a_stream_that_is_divided_already_is_not_divided_again(
    points: tuple[str, ...], train: Train, user_module: UserModule, workdir: Path
) -> None:
    """Refused without the key; with it, two ranks train on all samples, and resume at the positions of both."""
    user_module("own_divided", DIVIDED)
    words = (*points, "data.train._target_=own_divided.Divided", "allow_targets=[own_stream,own_divided]",
             "model.dropout=0")  # fmt: skip
    one = train(*words, "data.divided=true", name="one")
    run_on_ranks(2, workdir, [
        ("train", "name=refused", *words),
        ("train", "name=two", *words, "data.divided=true"),
        ("train", "name=on", *words, "data.divided=true", "resume=outputs/two/checkpoints/update_00000004"),
    ], {"refused": 2})  # fmt: skip
    torch.testing.assert_close(weights(workdir / "outputs/two"), weights(one))
    assert_same_state(weights(workdir / "outputs/on"), weights(workdir / "outputs/two"))
    train(
        *words, "data.divided=true", "resume=outputs/two/checkpoints/update_00000004", name="alone", status=2
    )


@pytest.mark.slow
def test_one_and_two_ranks_train_on_the_same_samples(
    points: tuple[str, ...], train: Train, workdir: Path
) -> None:
    words = (*points, "micro_batch_size=4", "data.num_workers=1")
    one = train(*words, name="one")
    run_on_ranks(2, workdir, [("train", "name=two", *words)])
    for alone, together in zip(weights(one).values(), weights(workdir / "outputs/two").values(), strict=True):
        torch.testing.assert_close(together, alone)
