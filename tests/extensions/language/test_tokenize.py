"""`hydrant tokenize`: text becomes the files of data=tokens."""

import json
import signal
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from encodings_of_tiktoken import small_encoding

from hydrant import cli
from hydrant.extensions.language import tokenizers as tokenize
from hydrant.extensions.language.token_files import read_vocabulary, token_files
from hydrant.extensions.language.tokenizers import BytesTokenizer, make_tokenizer

TEXT = "".join(f"Zeile {n}: wörter 字\n" for n in range(200))


@pytest.fixture
def texts(workdir: Path) -> Path:
    """A folder of two texts and another file."""
    (workdir / "texts" / "sub").mkdir(parents=True)
    (workdir / "texts" / "b.txt").write_text(TEXT)
    (workdir / "texts" / "sub" / "c.md").write_text("ende\n" * 10)
    (workdir / "texts" / "a.bin").write_bytes(b"\xff")
    (workdir / "texts" / ".git" / "logs").mkdir(parents=True)
    (workdir / "texts" / ".git" / "logs" / "HEAD.txt").write_text(TEXT)
    (workdir / "texts" / "sub" / ".c.md").write_text("versteckt")
    (workdir / "texts" / "again").symlink_to(".")
    return workdir / "texts"


def tokens(folder: str, split: str) -> list[int]:
    files = token_files(folder, f"{split}_*.bin", "uint16", f"data.{split}")
    return np.concatenate([file.mapped() for file in files]).tolist()


@pytest.mark.parametrize("name", ["bytes", "char", "small_gpt2"])
@pytest.mark.parametrize("chunk_bytes", [7, 2**22])
def test_the_tokens_are_those_of_the_texts(
    name: str, chunk_bytes: int, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are read in chunks; each file is a document; the last lines validate."""
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: small_encoding(name.removeprefix("small_")))
    monkeypatch.setattr(tokenize, "_CHUNK_BYTES", chunk_bytes)
    words = ["--encoding", name, "--val", "0.3", "--shard-size", "1000", "--out", "out"]
    assert cli.main(["tokenize", "texts", *words]) == 0
    vocabulary = read_vocabulary(Path("out"))
    assert vocabulary is not None
    assert vocabulary.encoding == name
    tokenizer = make_tokenizer(vocabulary)
    whole = TEXT + "ende\n" * 10
    size = len(whole.encode())
    cut = whole.encode().index(b"\n", size - round(0.3 * size)) + 1
    train, val = tokens("out", "train"), tokens("out", "val")
    separator = vocabulary.separator
    assert train == [*tokenizer.encode(whole.encode()[:cut].decode()), separator]
    assert val == [
        *tokenizer.encode(TEXT.encode()[cut:].decode()),
        separator,
        *tokenizer.encode("ende\n" * 10),
        separator,
    ]
    files = sorted(path.name for path in Path("out").iterdir())
    assert files == ["tokens.json", *(f"train_{n:06}.bin" for n in range(-(-len(train) // 1000))),
                     *(f"val_{n:06}.bin" for n in range(-(-len(val) // 1000)))]  # fmt: skip


def test_a_byte_order_mark_is_no_text(workdir: Path) -> None:
    (workdir / "a.txt").write_text("\ufeffeins\n\ufeffzwei\ndrei\n")
    assert cli.main(["tokenize", "a.txt", "--val", "0.4", "--out", "out"]) == 0
    text = make_tokenizer(read_vocabulary(Path("out"))).decode(tokens("out", "train"))
    assert text == "eins\n\ufeffzwei\n<|endoftext|>", "a mark inside of a text is a character of it"


def test_the_command_names_what_it_wrote(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tokenize", "texts/b.txt", "texts/sub", "--out", "data/out"]) == 0
    said = capsys.readouterr().out
    assert "train tokens in 1 file, " in said
    assert "data=tokens data.root=data/out" in said
    config = json.loads(Path("data/out/tokens.json").read_text())
    assert (config["encoding"], config["size"], config["separator"]) == ("bytes", 257, 256)


def test_an_interrupted_command_leaves_nothing(
    texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tokenize, "_CHUNK_BYTES", 100)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore SIGINT

    def interrupted(self: BytesTokenizer, text: str) -> np.ndarray:
        written = Path(".out.tmp/train_000000.bin")
        if written.is_file() and written.stat().st_size > 3000:
            assert not Path("out").exists()
            signal.raise_signal(signal.SIGINT)
        return np.frombuffer(text.encode(), np.uint8)

    monkeypatch.setattr(BytesTokenizer, "encode", interrupted)
    try:
        assert cli.main(["tokenize", "texts", "--out", "out"]) == 130
    finally:
        signal.signal(signal.SIGINT, previous)
    assert sorted(path.name for path in Path().iterdir()) == ["texts"]


def test_memory_does_not_grow_with_the_texts(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize, "_CHUNK_BYTES", 2**14)

    def peak(size: int) -> int:
        (workdir / f"{size}.txt").write_text("some words\n" * size)
        cli.main(["tokenize", f"{size}.txt", "--out", f"warm_{size}"])
        tracemalloc.start()
        assert cli.main(["tokenize", f"{size}.txt", "--out", f"out_{size}"]) == 0
        _, largest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return largest

    assert peak(200_000) < 1.5 * peak(20_000) + 2**17


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--out out", "tokenize what?"),
        ("texts", "tokenize what?"),
        ("texts --out texts", "--out: texts exists"),
        ("texts --out out --val 1", "--val: needs a number above 0 and below 1, not 1.0"),
        ("texts/b.txt --out out --val 0.999999", "--val: 0.999999 leaves no text to train on"),
        ("texts --out out --shard-size 0", "--shard-size: needs a whole number from 1 to 2147483647, not 0"),
        ("nowhere --out out", "nowhere does not exist"),
        ("texts --out out --suffixes .py", "texts has no files that end in .py"),
        ("texts --out out --encoding nothing", "--encoding: 'nothing' cannot be loaded"),
        ("texts --out texts/b.txt/out", "--out: texts/b.txt/out cannot be written"),
    ],
)
def test_wrong_words_are_refused(
    words: str, message: str, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tokenize", *words.split()]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["texts"]


@pytest.mark.parametrize("chunk_bytes", [3, 2**22])
def test_a_file_that_is_no_text_is_named_with_the_place(
    chunk_bytes: int, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (texts / "c.txt").write_bytes(b"four\xff" * 20 + b"\n" + b"1\n" * 500)
    monkeypatch.setattr(tokenize, "_CHUNK_BYTES", chunk_bytes)
    assert cli.main(["tokenize", "texts/c.txt", "--out", "out"]) == 1
    assert (
        "texts/c.txt: line 1 is no text in UTF-8 (byte 0xff); save the file in UTF-8"
        in capsys.readouterr().err
    )
    assert not Path("out").exists()
