"""The page of the league is written from its committed results, and the results are of a fair tuning."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
import yaml
from repository import ROOT
from scipy import stats

from examples.league import page, pictures, results, studies
from examples.league.sweeps import MODELS, Row, best_rates
from hydrant.config.groups import option_path

SWEEPS = results.load()[1]


def test_the_page_is_generated_from_the_results() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text()
    for name in (pictures.RATES, pictures.LOSSES):
        assert (ROOT / "docs" / "images" / name).stat().st_size < 150_000


def test_each_study_of_the_page_is_of_the_protocol_in_its_file() -> None:
    sweeper = yaml.safe_load(option_path("sweep", "league").read_text(encoding="utf-8"))["hydra"]["sweeper"]
    contents = json.loads(studies.FILE.read_text(encoding="utf-8"))
    assert contents.keys() <= {model.name for model in MODELS}
    for content in contents.values():
        protocol, names = content["protocol"], [row["name"] for row in content["contenders"]]
        assert names == sweeper["params"]["optimizer"].split(",")
        assert (protocol["rounds"], protocol["max_seeds"]) == (sweeper["rounds"], sweeper["seeds"])
        assert (protocol["metric"], protocol["budget"]) == (
            sweeper["params"]["best.metric"],
            {"cpu_seconds": 180},
        )
        standing, verdict = studies.judged(content)
        assert verdict.sentence in page.text()
        for key in ("status", "ended_by", "winner", "leader", "rival", "seeds_needed"):
            assert getattr(verdict, key) == content["verdict"][key]
        beaten = {row["name"]: (row["beaten_by"], row["beaten_after"]) for row in content["contenders"]}
        assert standing.beaten == {name: by for name, by in beaten.items() if by[0]}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_optimizer_has_the_same_number_of_runs(model: results.Model) -> None:
    """12 optimizers with the learning rates of the experiment, and fresh seeds at the best one."""
    tuning, fresh = SWEEPS[model.name]["tuning"], SWEEPS[model.name]["fresh"]
    file = option_path("experiment", "optimizer_league")
    params = yaml.safe_load(file.read_text(encoding="utf-8"))["hydra"]["sweeper"]["params"]
    optimizers, rates = (
        params["optimizer"].split(","),
        [float(lr) for lr in params["optimizer.lr"].split(",")],
    )
    assert len(optimizers) == 12
    assert Counter((row.optimizer, row.lr, row.seed) for row in tuning) == Counter(
        (optimizer, lr, seed) for optimizer in optimizers for lr in rates for seed in model.tuning_seeds
    )
    assert {(row.optimizer, row.lr) for row in fresh} == set(best_rates(tuning).items())
    assert Counter((row.optimizer, row.seed) for row in fresh) == Counter(
        (optimizer, seed) for optimizer in optimizers for seed in model.fresh_seeds
    )
    assert len(model.fresh_seeds) >= 3
    assert not set(model.fresh_seeds) & set(model.tuning_seeds)


def test_a_failed_run_makes_a_rate_the_worst() -> None:
    rows = [
        Row("sgd", 0.1, 0, 1.0),
        Row("sgd", 0.1, 1, math.inf),
        Row("sgd", 0.01, 0, 2.0),
        Row("sgd", 0.01, 1, 2.0),
    ]
    assert best_rates(rows) == {"sgd": 0.01}


def test_the_differences_are_those_of_paired_tests_of_scipy() -> None:
    phases = SWEEPS["mlp"]
    table = {s.optimizer: s for s in results.standings(phases["tuning"], phases["fresh"])}
    raw = {o: stats.ttest_rel(s.losses, table["adamw"].losses) for o, s in table.items() if o != "adamw"}
    for optimizer, expected in raw.items():
        difference = table[optimizer].difference
        assert difference is not None
        interval = expected.confidence_interval()
        assert (difference.p, difference.low, difference.high) == pytest.approx(
            (expected.pvalue, interval.low, interval.high)
        )
        place = sum(other.pvalue < expected.pvalue for other in raw.values())
        assert (table[optimizer].p_holm or 0) >= min(1.0, (len(raw) - place) * expected.pvalue) - 1e-12
