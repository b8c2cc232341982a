"""What a study may use, the values that it tries, and the numbers in its tables."""

from collections.abc import Callable

import pytest
from repository import options_of
from studies import protocol_of

from hydrant.errors import ConfigError
from hydrant.extensions.editor.json_schema import read_option
from hydrant.extensions.study.protocol import declared_range, read_range, split_contender
from hydrant.extensions.study.report import results_table
from hydrant.extensions.study.trials import CPU, RUNS, UPDATES, WALL, read_budget

READERS: dict[str, Callable[[str], object]] = {
    "hydra.sweeper.budget": read_budget,
    "hydra.sweeper.contenders": split_contender,
    "optimizer.lr": lambda text: read_range("optimizer.lr", text, 1),
}


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("hydra.sweeper.budget", "ten", "each once, not 'ten'; write 40runs"),
        ("hydra.sweeper.budget", "nans", "not 'nans'"),
        ("hydra.sweeper.budget", "0runs", "not '0runs'"),
        ("hydra.sweeper.budget", "18.5runs", "whole numbers of runs and updates"),
        ("hydra.sweeper.budget", "3runs,4runs", "each once"),
        ("hydra.sweeper.contenders", "optimizer='a", "has an open quote"),
        ("hydra.sweeper.contenders", "name=a name=b", "needs one name= or none"),
        ("hydra.sweeper.contenders", "optimizer=sgd name=", "needs one name= or none"),
        ("optimizer.lr", "nan..1", "needs two finite numbers"),
        ("optimizer.lr", "1..1e-3", "needs two finite numbers, the smaller one first, not '1..1e-3'"),
        ("optimizer.lr", "1e-3..x", "not '1e-3..x'; write optimizer.lr=1e-4..1e-1"),
    ],
)
def test_a_wrong_text_is_refused(key: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        READERS[key](text)
    assert raised.value.key == key


def test_the_early_warning_names_fewer_rounds_if_they_pay_for_more_seeds() -> None:
    """Ten runs, and four of each finer round if they fit into 60 % of the budget; the rest for two contenders."""
    [warning] = protocol_of(2, "30runs").warnings(None)
    assert warning.endswith(
        "pays for 6 of 20 fresh seeds; --rounds 0 for 10, --budget 58runs for all of them"
    )
    [warning] = protocol_of(2, "22runs").warnings(None)
    assert warning.endswith("pays for 6 of 20 fresh seeds; --budget 58runs for all of them"), "no round fits"


def test_an_enlarged_budget_is_written_as_it_is_read_and_pays_for_the_runs() -> None:
    budget = read_budget("40runs,10cpu-min,1000updates,0.5h")
    assert read_budget(budget.words()) == budget
    used = {RUNS: 39, UPDATES: 900, WALL: 100.0, CPU: 500.0}
    cost = {RUNS: 1, UPDATES: 20, WALL: 2.0, CPU: 13.0}
    larger = budget.enlarged(used, cost, 10)
    assert larger.words() == "49runs,11cpu-min,1120updates,30min"
    assert larger.num_affordable(used, cost) == 10
    assert larger.enlarged(used, cost, 10) == larger
    begun, unknown = {RUNS: 0, UPDATES: 0, WALL: 11.3, CPU: 9.0}, {RUNS: 1, UPDATES: 0.0, WALL: 0.0, CPU: 0.0}
    assert read_budget("3s").enlarged(begun, unknown, 18).words() == "34s", (
        "twice what a start has used is left"
    )


BY_NAME = ("library", "timm")  # the name of the optimizer is a key, so no range fits
OPTIMIZERS = [option for option in options_of("optimizer") if option not in BY_NAME]


@pytest.mark.parametrize(("option", "name"), [*((option, "lr") for option in OPTIMIZERS), ("sam", "rho")])
def test_each_optimizer_declares_a_range_that_holds_its_default(option: str, name: str) -> None:
    declared = declared_range(f"optimizer.{name}", {"optimizer": option})
    values = [float(value) for value in read_range(f"optimizer.{name}", declared, 1).values]
    default = float(read_option("optimizer", option).keys[name].default)
    assert values == sorted(values)
    assert values[0] <= default <= values[-1]
    assert read_range("optimizer.lr", declared, 1).is_log


def test_the_scarcest_of_several_limits_counts() -> None:
    budget = read_budget("40runs,1000updates,10min,2cpu-h")
    used = {RUNS: 10, UPDATES: 800, WALL: 60.0, CPU: 60.0}
    cost = {RUNS: 1, UPDATES: 80, WALL: 6.0, CPU: 6.0}
    assert budget.num_affordable(used, cost) == 2.5
    assert budget.num_affordable(used, cost, share=0.6) == 0
    assert budget.num_affordable(used, {**cost, UPDATES: 0}) == 30
    assert budget.lets_continue({**used, RUNS: 40}), "the runs that have begun are among the 40"
    assert not budget.lets_continue({**used, UPDATES: 1000})
    assert read_budget(None).num_affordable(used, cost) == float("inf")


def test_means_that_differ_in_late_digits_are_shown_apart() -> None:
    means = {"adamw": 1234569.0123, "sgd": 1234569.1051}
    rows = [
        {"name": name, "best": {}, "beaten_by": None, "mean": mean, "low": mean - 0.01, "high": mean + 0.01,
         "std": 0.02, "num_seeds": 6, "state": "active"}
        for name, mean in means.items()
    ]  # fmt: skip
    protocol = {"metric": "val/loss", "mode": "min", "alpha": 0.05}
    table = results_table({"protocol": protocol, "tuning": {"trials": []}, "contenders": rows})
    assert [row[1:3] for row in table[1:]] == [
        ["1234569.01", "1234569 to 1234569.02"],
        ["1234569.11", "1234569.1 to 1234569.12"],
    ]
