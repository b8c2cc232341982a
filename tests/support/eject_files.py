"""Small files of every kind of data, for runs that are ejected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from data_files import CLASSES, NUM_TRAIN, NUM_VAL, write_images
from token_folders import write_bin, write_shards

from hydrant.data.docstrings import BYTES


def write_files(folder: Path) -> None:
    """Write a table, texts, tensors, arrays and images into a folder."""
    write_houses(folder / "houses.csv", 90)
    write_texts(folder / "texts")
    for split, count in {"train": 60, "val": 30}.items():
        for kind in ("points", "labels"):
            save_tensors(folder / f"{kind}_{split}.pt", kind, count)
        write_arrays(folder / f"arrays_{split}", count)
    for split, num_images in (("train", NUM_TRAIN), ("val", NUM_VAL)):
        for number, name in enumerate(CLASSES):
            write_images(folder / "images" / split / name, num_images, seed=10 * number + num_images)


def write_houses(path: Path, count: int, *, gaps: bool = False) -> None:
    """Write a table of numbers, texts and a price. With gaps, some cells are missing."""
    rng = np.random.default_rng(count)
    lines = ["rooms, area,city,storeys,kind,price,size"]
    for n in range(count):
        area = "" if gaps and n % 7 == 3 else f"{rng.normal(80, 20):.3f}"
        city = "NA" if gaps and n % 5 == 2 else rng.choice(["Ulm", "Köln", '"Bonn, West"'])
        price = f"{rng.normal(1e5, 3e4):.1f}"
        lines.append(f"{rng.integers(1, 6)},{area},{city},2,{n % 3},{price},{'SML'[n % 3]}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_texts(root: Path) -> None:
    """Write a folder of tokens of bytes, as `hydrant tokenize` does: documents of random letters."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(97, 110, 1300)
    tokens[rng.integers(0, 1300, 60)] = BYTES.separator
    write_shards(root, "train", tokens, (700, 250, 350))
    write_bin(root / "val_0.bin", tokens[:400])
    BYTES.write(root)


def save_tensors(path: Path, kind: str, count: int) -> None:
    """Write inputs and targets of 5 classes into a file; `labels`: each sample has some of them, or none."""
    rng = np.random.default_rng(count)
    shape = {"points": (4,), "labels": (4,), "bytes": (3, 8, 8), "images": (3, 8, 8), "signals": (2, 6)}[kind]
    inputs = rng.normal(size=(count, *shape))  # float64
    if kind == "bytes":
        inputs = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    targets = rng.integers(0, 2, (count, 5)) if kind == "labels" else rng.integers(0, 5, count)
    arrays = {"inputs": inputs, "targets": targets}
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)


def spoil(path: Path, num_samples: int) -> None:
    """Make the first samples of a file NaN."""
    samples = torch.load(path, weights_only=True)
    samples["inputs"][:num_samples] = torch.nan
    torch.save(samples, path)


def write_arrays(folder: Path, count: int) -> None:
    """Write the arrays of `data=memmap`, of 3 classes."""
    rng = np.random.default_rng(count)
    folder.mkdir()
    np.save(folder / "inputs.npy", rng.normal(size=(count, 4)))
    np.save(folder / "targets.npy", rng.integers(0, 3, count).astype(np.uint16))
