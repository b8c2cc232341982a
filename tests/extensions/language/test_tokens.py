"""Sequences of tokens from memory-mapped files."""

import itertools
import math
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_folders import rows
from sources import GLOBAL_BATCH_SIZE, joined, same, spec, update
from token_folders import write_bin, write_shards
from training_runs import Train

from hydrant import cli
from hydrant.data.base import select
from hydrant.errors import ConfigError, DataError
from hydrant.extensions.language import TokenData, tokens
from hydrant.extensions.language.token_data import FileOrder, ShuffledOrder
from hydrant.extensions.language.token_files import BYTES

TOKENS = np.random.default_rng(0).integers(0, 50, 507)
LENGTH = 20  # 25 sequences


def read(root: Path, **changes: Any) -> TokenData:
    settings = {
        "root": str(root), "train": "train_*", "val": "val.bin", "test": None, "extra_val": {}, "dtype": "uint16",
        "sequence_length": LENGTH, "sampling": "windows", "vocab_size": 50, "separator": None,
        "separator_position": None, "fingerprint": None, "input_shape": [LENGTH], "num_classes": 50,
    }  # fmt: skip
    return tokens(**settings | changes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of 507 tokens in four files, whose ends lie within sequences, and once at the end of one."""
    write_bin(tmp_path / "val.bin", TOKENS[:100])
    write_shards(tmp_path, "train", TOKENS, (45, 200, 155, 107))
    return tmp_path


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_the_type_of_tokens_comes_from_a_key_or_a_header(root: Path, dtype: str) -> None:
    """Every second half of small numbers is 0: their looks do not tell whether the file has wider ones."""
    tokens = np.random.default_rng(0).integers(0, 50, 300).astype(dtype)
    tokens.tofile(root / "own.bin")
    with pytest.raises(ConfigError, match=r"^data\.dtype: .*own\.bin has no header, .*; give uint16"):
        read(root, train="own.bin", val="train_2.npy", dtype=None)
    shards = [read(root, train="own.bin", dtype=dtype).tokens]
    write_bin(root / "headed.bin", tokens, dtype)
    shards.append(read(root, train="headed.bin", val="train_2.npy", dtype=None).tokens)
    assert [part.read(0, part.num_tokens).tolist() for part in shards] == [tokens.tolist()] * 2


def test_a_negative_number_is_no_token(root: Path) -> None:
    np.save(root / "own.npy", np.where(np.arange(300) == 7, -1, 3))
    with pytest.raises(DataError, match=r"token 7 of .*own\.npy is -1, but ids are 0 to 49"):
        next(iter(read(root, train="own.npy").train.batches(spec(), 25)))


@pytest.mark.slow
def test_files_outside_of_the_root_are_not_described_by_its_vocabulary(
    workdir: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the corpus of the default root in its place, own files in another folder need their own vocabulary."""
    (workdir / "own").mkdir()
    for name in ("train", "val"):
        np.random.default_rng(0).integers(0, 256, 5000).astype("uint16").tofile(
            workdir / "own" / f"{name}.bin"
        )
    files = (f"data.train={workdir}/own/train.bin", f"data.val={workdir}/own/val.bin", "data.dtype=uint16")
    small = ("duration=2", "global_batch_size=2", "limit_val_samples=4", "eval_batch_size=2", "tracker=local",
             "hook=[]", "model.num_layers=1", "model.width=16", "model.num_heads=2")  # fmt: skip
    run = train("experiment=gpt_tiny", *files, "data.vocab_size=256", *small)
    assert rows(run)[-1]["val/loss"] < 7
    assert "val/bits_per_byte" not in rows(run)[-1]
    train("experiment=gpt_tiny", *files, *small, name="unknown", status=2)
    assert f"{workdir}/own has no tokens.json, so give the number" in capsys.readouterr().err


def test_a_sample_is_a_window_of_the_files_in_a_row(root: Path) -> None:
    inputs, targets = joined(read(root).train.batches(spec(), 25))
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.flatten().tolist() == TOKENS[:500].tolist()
    assert targets.flatten().tolist() == TOKENS[1:501].tolist()
    assert all(part.is_contiguous() for part in (inputs, targets))


@pytest.mark.parametrize("sampling", ["windows", "contiguous", "documents"])
def test_an_epoch_predicts_every_token_once(sampling: str, root: Path) -> None:
    """The values are the positions of the tokens, so each target names its place."""
    write_bin(root / "numbers.bin", np.arange(5 * 12 * LENGTH + 7))
    data = read(
        root, train="numbers.bin", vocab_size=2000, sampling=sampling, separator=0, separator_position="end"
    )
    epochs = [[update(data.train, epoch * 5 + n) for n in range(5)] for epoch in range(2)]
    for epoch in epochs:
        targets = torch.cat([part[1] for part in epoch]).flatten()
        # The token after the separator, which is the first token here, belongs to another document.
        ignored = [] if sampling != "documents" else [1]
        assert sorted(set(targets.tolist()) - {-100}) == [n for n in range(1, 1201) if n not in ignored]
        assert len(targets) == 1200
    is_shuffled = sampling != "contiguous"
    assert is_shuffled != same(epochs[0][0], epochs[1][0])
    assert is_shuffled != same(update(data.train, 0), joined([next(iter(data.train.batches(spec(), 12)))]))


@pytest.mark.parametrize("position", ["end", "start"])
def test_the_next_token_of_another_document_is_no_target(position: str, tmp_path: Path) -> None:
    """Each row is checked against a loop over its tokens."""
    generator = np.random.default_rng(1)
    stream = np.where(generator.random(2001) < 0.15, 9, generator.integers(0, 9, 2001))
    write_bin(tmp_path / "train.bin", stream)
    data = read(tmp_path, train="train.bin", val="train.bin", vocab_size=10, sampling="documents", separator=9,
                separator_position=position)  # fmt: skip
    for row, (batch,) in enumerate(zip(data.train.batches(spec(), 1))):
        window = stream[row * LENGTH : (row + 1) * LENGTH + 1].tolist()
        numbers = [0]
        for token, following in itertools.pairwise(window):
            numbers.append(numbers[-1] + ((token if position == "end" else following) == 9))
        expected = [t if n == m else -100 for t, n, m in zip(window[1:], numbers[1:], numbers, strict=False)]
        assert batch.inputs["tokens"][0].tolist() == window[:-1]
        assert batch.inputs["documents"][0].tolist() == numbers[:-1]
        assert batch.targets[0].tolist() == expected


def test_an_order_is_a_stream_without_end() -> None:
    assert FileOrder(25).indices(23, 4).tolist() == [23, 24, 0, 1]
    assert ShuffledOrder(0, 25).indices(20, 10).tolist() == [
        *(int(index) for start in range(20, 30) for index in ShuffledOrder(0, 25).indices(start, 1))
    ]


def test_a_place_in_a_long_order_takes_no_order_of_the_epoch() -> None:
    num_samples = 10**12  # their permutation would take 8 TB
    chosen = ShuffledOrder(0, num_samples).indices(3 * num_samples // 2, 5000)
    assert len(set(chosen.tolist())) == 5000
    assert (select(range(5, 5 + num_samples), chosen) == chosen + 5).all()


def test_reading_does_not_depend_on_how_the_tokens_are_divided_into_files(root: Path) -> None:
    whole = read(root, train="whole.bin") if write_bin(root / "whole.bin", TOKENS) else None
    assert whole is not None
    for num_updates in (0, 3, 7):
        assert same(update(read(root).train, num_updates), update(whole.train, num_updates))
    shards = read(root).tokens
    assert shards.read(40, 210).tolist() == TOKENS[40:250].tolist()
    assert len(shards.files) == 4


def test_more_files_are_read_than_a_process_may_open_at_first(root: Path) -> None:
    write_shards(root, "many", np.resize(TOKENS, 210 * LENGTH), (LENGTH,) * 210)
    limits, num_open = resource.getrlimit(resource.RLIMIT_NOFILE), len([*Path("/proc/self/fd").iterdir()])
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 300, limits[1]))
    try:
        shards = read(root, train="many_*").tokens
        assert shards.windows(range(209), LENGTH).shape == (209, LENGTH + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_splits_have_their_files(root: Path) -> None:
    write_bin(root / "code.bin", TOKENS[:50], "uint32")
    data = read(root, test="code.bin", extra_val={"code": ["code.bin", "val.bin"]}, val=None)
    assert data.test is not None
    sizes = [part.num_samples for part in (data.train, data.val, data.test, data.extra_val["code"])]
    assert sizes == [25, 0, 2, 7]
    assert read(root, val=str(root / "val.bin")).val.num_samples == 4  # an absolute path


def test_a_vocabulary_says_what_tokens_mean(root: Path) -> None:
    data = read(root)
    assert (data.token_bytes, data.vocabulary) == (None, None)
    with pytest.raises(ConfigError, match=r"data\.root: has no tokens\.json"):
        data.decode([1])
    BYTES.write(root)
    data = read(root, vocab_size=320)
    assert data.vocab_size == 320
    assert data.token_bytes == (*[1] * 256, *[0] * 64)
    assert data.decode([*data.encode("né"), 256, 300]) == "né<|endoftext|><|endoftext|>"
    with pytest.raises(ConfigError, match=r"data\.vocab_size: 50 is less than the 257"):
        read(root)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"train": "none_*.bin"}, ConfigError, r"data\.train: .*none_\*\.bin names no file"),
        ({"train": []}, ConfigError, r"data\.train: needs a file of tokens"),
        ({"train": "."}, ConfigError, "is a folder; add"),
        ({"extra_val": {"a": "b.bin"}}, ConfigError, r"data\.extra_val\.a: .*b\.bin names no file"),
        ({"sequence_length": 100}, ConfigError, r"data\.sequence_length: 100 is too long: data\.val has 100 tokens"),
        ({"vocab_size": None}, ConfigError, r"data\.vocab_size: .* such as 50257"),
        ({"separator": 50}, ConfigError, r"data\.separator: 50 is no token: they are 0 to 49, by data\.vocab_size"),
        ({"separator": -1}, ConfigError, r"data\.separator: -1 is no token"),
        ({"sampling": "documents"}, ConfigError, r"data\.separator: .* no tokens\.json; sampling=documents"),
        ({"fingerprint": "0"}, ConfigError, r"data\.fingerprint: is 0 in the config, but .* the tokens have changed"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(changes: Any, error: Any, message: str, root: Path) -> None:
    with pytest.raises(error, match=message):
        read(root, **changes)


@pytest.mark.parametrize("sampling", ["windows", "contiguous"])
def test_an_id_outside_the_vocabulary_is_named_with_its_place(sampling: str, root: Path) -> None:
    place = int(TOKENS.argmax())
    data = read(root, vocab_size=int(TOKENS.max()), sampling=sampling)
    updates = range(math.ceil(data.train.num_samples / GLOBAL_BATCH_SIZE))
    for reading in (
        lambda: joined(data.train.batches(spec(), 25)),
        lambda: [update(data.train, number) for number in updates],
    ):
        refusal = rf"token {place - 45} of .*train_1\.bin is 49, .*data\.vocab_size=50 or more"
        with pytest.raises(DataError, match=refusal):
            reading()


@pytest.fixture
def words(workdir: Path) -> tuple[str, ...]:
    """The overrides of a run of a bigram model over tokens of `corpus`."""
    option = workdir / "conf" / "model" / "bigram.yaml"
    option.parent.mkdir(parents=True)
    option.write_text(
        "_target_: torch.nn.Embedding\nnum_embeddings: ${data.vocab_size}\nembedding_dim: ${data.vocab_size}\n"
    )
    write_corpus(workdir / "corpus", TOKENS)
    return (
        "data=tokens", "data.root=corpus", "data.sequence_length=20", "model=bigram", "task.class_dim=-1",
        "optimizer.lr=0.1", "tracker=local", "global_batch_size=4", "duration=8", "log_every=1", "eval_every=4",
        "save_every=4",
    )  # fmt: skip


def write_corpus(folder: Path, tokens: np.ndarray) -> None:
    for split in ("train", "val"):
        write_bin(folder / f"{split}_0.bin", tokens)
    BYTES.write(folder)


def test_a_run_does_not_continue_with_other_tokens(
    words: tuple[str, ...], train: Train, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*words)
    write_corpus(workdir / "corpus", TOKENS[::-1])
    train(*words, "duration=12", "resume_strict=true", status=2)
    assert "data.fingerprint (" in capsys.readouterr().err
    assert cli.main(["evaluate", "outputs/run"]) == 2
    assert "data.fingerprint: is " in capsys.readouterr().err
    assert cli.main(["evaluate", "outputs/run", "data.fingerprint=null"]) == 0
