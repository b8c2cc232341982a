"""Small folders of tokens, for the tests of data=tokens."""

from pathlib import Path

import numpy as np

from hydrant.extensions.language.token_files import BYTES, HEADER, MAGIC


def write_bin(path: Path, tokens: np.ndarray, dtype: str = "uint16", *, header: bool = True) -> Path:
    """Write tokens as a `.bin` file."""
    numbers = np.zeros(HEADER if header else 0, dtype="<i4")
    if header:
        numbers[:3] = *MAGIC[dtype], len(tokens)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(numbers.tobytes() + tokens.astype(dtype).tobytes())
    return path


def write_shards(root: Path, split: str, tokens: np.ndarray, sizes: tuple[int, ...]) -> None:
    """Write tokens as files of these sizes: with the header, without, and as `.npy`, in turn."""
    parts = np.split(tokens, np.cumsum(sizes)[:-1])
    for number, part in enumerate(parts):
        path = root / f"{split}_{number}.bin"
        if number % 3 == 2:
            np.save(root / f"{split}_{number}.npy", part.astype(np.int32))
        else:
            write_bin(path, part, header=number % 3 == 0)


def write_texts(root: Path) -> None:
    """Write a folder of tokens of bytes, as `hydrant tokenize` does: documents of random letters."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(97, 110, 1300)
    tokens[rng.integers(0, 1300, 60)] = BYTES.separator
    for number, part in enumerate(np.split(tokens[:950], [700])):
        write_bin(root / f"train_{number}.bin", part)
    write_bin(root / "val_0.bin", tokens[:400])
    BYTES.write(root)
