"""The flags of `train` are those of Hydra's own parser, which cannot be built on Python 3.14."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import pytest
from hydra._internal.utils import get_args_parser

from hydrant import cli
from hydrant.config.hydra_main import parse_flags, train_flags

BROKEN = sys.version_info >= (3, 14)
"""Hydra 1.3.8 gives argparse a help text that is no string."""

NOT_OURS = ("help", "hydra_help", "experimental_rerun")
"""Hydrant prints its own help, and writes no pickled configs that could run again."""


def test_the_flags_are_those_of_hydra() -> None:
    if BROKEN:  # when this fails, `hydra.main` may work here: then delete `hydrant.config.hydra_main`
        with pytest.raises(ValueError, match="badly formed help string"):
            get_args_parser()
        return

    def flags(parser: argparse.ArgumentParser) -> set[tuple[object, ...]]:
        return {
            (
                tuple(a.option_strings),
                a.dest,
                a.nargs,
                a.const,
                a.default,
                tuple(a.choices or ()),
                type(a).__name__,
            )
            for a in parser._actions
            if a.dest not in NOT_OURS
        }

    assert flags(train_flags()) == flags(get_args_parser())


@pytest.mark.parametrize(
    ("words", "flags", "overrides"),
    [
        (["seed=1", "--multirun", "optimizer=sgd,adam"], ["multirun"], ["seed=1", "optimizer=sgd,adam"]),
        (["--", "seed=1"], [], ["seed=1"]),
        (["-m", "--", "seed=1"], ["multirun"], ["seed=1"]),
        (["seed=1", "--cfg", "job", "--resolve", "~optimizer.lr"], ["cfg", "resolve"], ["seed=1", "~optimizer.lr"]),
        (["seed=1", "--info", "searchpath", "seed=2"], ["info"], ["seed=1", "seed=2"]),
        (["seed=1", "--info"], ["info"], ["seed=1"]),
        ([], [], []),
    ],
    ids=str,
)  # fmt: skip
def test_flags_and_overrides_come_in_any_order(
    words: Sequence[str], flags: list[str], overrides: list[str]
) -> None:
    parsed = vars(parse_flags(words))
    assert parsed.pop("overrides") == overrides
    assert {name for name, value in parsed.items() if value} == set(flags)


@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("--cfg", "job", "--package", "optimizer", "optimizer=sgd"), "# @package optimizer\n_target_: "),
        (("--cfg", "job", "-p", "seed", "seed=7"), "7\n"),
        (("-i", "defaults"), "scheduler"),
    ],
)
def test_hydra_prints_what_the_flags_ask_for(
    words: tuple[str, ...], printed: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *words]) == 0
    assert printed in capfd.readouterr().out
