"""The search space: Hydra's sweep syntax as distributions of Optuna."""

from collections.abc import Sequence

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from searches import space_of

from hydrant.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "distribution"),
    [
        ("choice(adamw,sgd)", CategoricalDistribution(["adamw", "sgd"])),
        ("adamw,sgd,adamw", CategoricalDistribution(["adamw", "sgd"])),
        ("choice([16,16],'a b')", CategoricalDistribution(["[16,16]", r"a\ b"])),
        ("range(1,9,2)", IntDistribution(1, 7, step=2)),  # the values of the grid
        ("shuffle(range(4))", IntDistribution(0, 3)),
        ("range(0,1,0.25)", FloatDistribution(0, 0.75, step=0.25)),
        ("interval(0,1)", FloatDistribution(0, 1)),
        ("int(interval(1,5))", IntDistribution(1, 5)),
        ("tag(log,interval(1e-4,1e-1))", FloatDistribution(1e-4, 1e-1, log=True)),
        ("tag(log,int(interval(1,100)))", IntDistribution(1, 100, log=True)),
    ],
)
def test_hydra_syntax_gives_distributions(word: str, distribution: object) -> None:
    space = space_of(f"+optimizer.lr={word}", "seed=1")
    assert dict(space.distributions) == {"+optimizer.lr": distribution}
    assert space.overrides({"+optimizer.lr": 2}) == ["seed=1", "+optimizer.lr=2"]


def test_choices_are_parsed_as_hydra_parses_them() -> None:
    words = ["1e-3", "'a b'", "[16,16]", "adamw", "null"]
    space = space_of(f"+a={','.join(words)}")
    parsed = [space.parse_choices({"+a": text})["+a"] for text in space.values("+a")]
    assert parsed == [0.001, "a b", [16, 16], "adamw", None]


def test_the_last_override_of_a_key_counts() -> None:
    space = space_of("optimizer.lr=interval(0,1)", "seed=0,1", "optimizer.lr=0.5")
    assert (list(space.distributions), space.fixed) == (["seed"], ["optimizer.lr=0.5"])


@pytest.mark.parametrize(
    ("words", "key", "reason"),
    [
        (["optimizer.lr=interval(1,0)"], "optimizer.lr", "cannot be searched"),
        (["optimizer.lr=tag(log,interval(0,1))"], "optimizer.lr", "`low > 0` must hold"),
        (["optimizer.lr=tag(uniform,interval(0,1))"], "optimizer.lr", "needs no tag but log"),
        (["seed=range(3,3)"], "seed", "cannot be searched"),
        (["seed=1"], "hydra.sweeper.params", "nothing to search"),
    ],
)
def test_words_without_a_search_space_are_refused(words: Sequence[str], key: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        space_of(*words)
    assert refused.value.key == key
