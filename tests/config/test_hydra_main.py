"""The flags of `train`, and what they print instead of training."""

from collections.abc import Sequence

import pytest

from hydrant import cli
from hydrant.commands.train import parse_flags


@pytest.mark.parametrize(
    ("words", "flags", "overrides"),
    [
        (["seed=1", "--multirun", "optimizer=sgd,adam"], ["multirun"], ["seed=1", "optimizer=sgd,adam"]),
        (["--", "seed=1"], [], ["seed=1"]),
        (["-m", "--", "seed=1"], ["multirun"], ["seed=1"]),
        (["seed=1", "--cfg", "job", "--resolve", "~optimizer.lr"], ["cfg", "resolve"], ["seed=1", "~optimizer.lr"]),
        (["seed=1", "--info", "seed=2"], ["info"], ["seed=1", "seed=2"]),
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
        (("-i",), "scheduler"),
    ],
)
def test_hydra_prints_what_the_flags_ask_for(
    words: tuple[str, ...], printed: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *words]) == 0
    assert printed in capfd.readouterr().out
