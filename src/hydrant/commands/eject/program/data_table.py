"""A table in a CSV file."""

# The branches of a program are decided alike.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hydrant.commands.eject.program.data_samples import Samples, first_of_test, placed
from hydrant.commands.eject.program.settings import *
from hydrant.data.csv_file import one_spelling

Table = list[dict[str, str]]  # the cells of each line by their column


def read_table(file: str) -> Table:
    """Return the lines of a CSV file, whose first line has the names of the columns."""
    with Path(file).open(newline="", encoding="utf-8-sig") as lines:
        table = list(csv.DictReader(lines, delimiter=DELIMITER))
    return [{name.lstrip("\ufeff").strip(): cell.strip() for name, cell in line.items()} for line in table]


def load_csv() -> tuple[Samples, Samples]:
    """Return samples to train on and to evaluate on: the lines of a table."""
    train = read_table(TRAIN)
    if CUTS_VAL or CUTS_TEST:
        train, val, _ = divided(train)
    if HAS_VAL_FILE:
        val = read_table(VAL)
    return placed(samples(train, train), samples(val, train))


def load_csv_test() -> Samples:
    """Return the samples to test on."""
    train = read_table(TRAIN)
    if CUTS_VAL or CUTS_TEST:
        train, _, test = divided(train)
    if HAS_TEST_FILE:
        test = read_table(TEST)
    return first_of_test(samples(test, train))


def divided(table: Table) -> tuple[Table, Table, Table]:
    """Return the lines to train on, to evaluate on and to test on: a random draw of those of one file."""
    num_val = int(np.ceil(VAL_RATIO * len(table))) if CUTS_VAL else 0
    num_test = int(np.ceil(TEST_RATIO * len(table))) if CUTS_TEST else 0
    order = np.random.RandomState(SPLIT_SEED).permutation(len(table))
    val, train, test = np.split(order, [num_val, len(table) - num_test])
    train, val, test = ([table[line] for line in np.sort(lines)] for lines in (train, val, test))
    return train, val, test


def samples(lines: Table, train_lines: Table) -> Samples:
    """Return the inputs and the targets of lines. The lines to train on decide what is subtracted from numbers."""
    if LIMITS_TRAIN:
        train_lines = train_lines[:NUM_SAMPLES]
    if HAS_NUMBERS:
        columns = [numbers(lines, train_lines, name, STANDARDIZE).unsqueeze(1) for name in NUMBERS]
    else:
        columns = list[Tensor]()
    if HAS_CATEGORIES:
        columns += [one_hot(lines, name) for name in CATEGORIES]
    if HAS_CLASSES:
        if HAS_NUMERIC_CLASSES:
            targets = torch.tensor(
                [CLASSES.index(str(float(line[TARGET])).removesuffix(".0")) for line in lines]
            )
        else:
            targets = torch.tensor([CLASSES.index(one_spelling(line[TARGET])) for line in lines])
    elif IS_SINGLE:
        targets = numbers(lines, train_lines, TARGET, STANDARDIZE_TARGETS)
    else:
        targets = torch.stack(
            [numbers(lines, train_lines, name, STANDARDIZE_TARGETS) for name in TARGETS], dim=1
        )
    return torch.cat(columns, dim=1), targets


def numbers(lines: Table, train_lines: Table, name: str, standardize: bool) -> Tensor:
    """Return a column of numbers, (N,)."""
    cells, train_cells = as_numbers(lines, name), as_numbers(train_lines, name)
    if FILLS:
        train_cells = train_cells[~np.isnan(train_cells)]
    is_constant = train_cells.min() == train_cells.max()
    mean = train_cells[0] if is_constant else train_cells.mean()
    if FILLS:
        cells = np.where(np.isnan(cells), mean, cells)
    if standardize:
        cells = (cells - mean) / (1 if is_constant else train_cells.std())
    return torch.from_numpy(cells.astype(np.float32))


def as_numbers(lines: Table, name: str) -> np.ndarray:
    """Return the cells of a column as float64, (N,)."""
    if FILLS:  # a cell that is missing is NaN
        return np.array(["nan" if line[name] in MISSING else line[name] for line in lines], np.float64)
    return np.array([line[name] for line in lines], np.float64)


def one_hot(lines: Table, name: str) -> Tensor:
    """Return a column of categories as a number 0 or 1 for each category; an unknown category has only zeros."""
    codes = {category: code for code, category in enumerate(CATEGORIES[name], start=1)}
    indices = torch.tensor([codes.get(one_spelling(line[name]), 0) for line in lines])
    return F.one_hot(indices, len(codes) + 1)[:, 1:].float()
