"""A sweep over several keys as one question: the effects of keys and their interactions, as computed with scipy."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from marks import slow
from msgspec.structs import replace
from planted import comparing, runs_of, write_run
from playwright.sync_api import Page, expect
from scipy import stats
from statsmodels.stats.multitest import multipletests

import hydrant
from hydrant import cli
from hydrant.extensions.compare.command import write_page
from hydrant.extensions.compare.groups import Metric, Terms
from hydrant.extensions.compare.sections import factorial_section
from hydrant.extensions.compare.serialize import for_paper, to_text
from hydrant.extensions.compare.verdict import Change, Factorial, Verdict, find_factorial

Array = npt.NDArray[np.float64]

VALUES = {"optimizer": ("adamw", "sgd"), "precision": ("bf16", "fp32"), "scheduler": ("cosine", "wsd")}


def planted_results() -> Array:
    """Return results (optimizer, precision, scheduler, seed): adamw leads, by more with wsd; precision does nothing."""
    noise = np.random.default_rng(0)
    results = 0.8 + noise.normal(0, 0.03, 5) + noise.normal(0, 0.002, (2, 2, 2, 5))
    results[0] += 0.05
    results[0, :, 1] += 0.03
    return results


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, results = tmp_path_factory.mktemp("factorial") / "sweep", planted_results()
    for place in np.ndindex(*results.shape):
        values = {key: options[n] for n, (key, options) in zip(place, VALUES.items(), strict=False)}
        name = "-".join([*values.values(), str(place[-1])])
        write_run(folder / name, {**values, "seed": place[-1]}, float(results[place]))
    return folder


def factorial_of(results: Array, by: tuple[str, ...], mode: str = "max") -> tuple[Factorial, Verdict]:
    terms = Terms(Metric("val/accuracy", mode), "seeds")
    found = find_factorial(runs_of(results, [*by, "seed"]), by, ["seed"], terms)
    assert found is not None
    return found


def is_anything_decided(found: Factorial, verdict: Verdict) -> bool:
    decided = bool(found.decided) or any(one.is_decided for one in found.interactions)
    assert (verdict.status == "decided") == decided, "the first sentence claims what is decided, and no more"
    return decided


def test_effects_and_interactions_are_those_of_scipy(sweep: Path) -> None:
    found, results = comparing(sweep).factorial, planted_results()
    assert found is not None
    tests = dict[tuple[str, ...], tuple[float, float]]()  # the effect and p
    for axis, key in enumerate(VALUES):
        first, second = (results.take(n, axis).mean(axis=(0, 1)) for n in (0, 1))
        test = stats.ttest_rel(first, second)
        tests[(key,)] = abs(float(np.mean(first - second))), test.pvalue
    for (axis, key), (other_axis, other) in itertools.combinations(enumerate(VALUES), 2):
        [rest] = {0, 1, 2} - {axis, other_axis}
        table = np.moveaxis(results.mean(axis=rest), -1, 0)  # (seeds, 2, 2)
        change = table[:, 1, 1] - table[:, 0, 1] - table[:, 1, 0] + table[:, 0, 0]
        tests[(key, other)] = abs(float(change.mean())), stats.ttest_1samp(change, 0).pvalue
    corrected = dict(zip(tests, multipletests([p for _, p in tests.values()], method="holm")[1], strict=True))
    rows: dict[tuple[str, ...], Change] = {(e.key,): e for e in found.effects}
    rows |= {tuple(i.keys): i for i in found.interactions}
    assert rows.keys() == tests.keys()
    for name, difference in rows.items():
        effect, p = tests[name]
        assert difference.mean == pytest.approx(effect, abs=1e-7)
        assert difference.p == pytest.approx(p, rel=1e-3)
        assert difference.p_holm == pytest.approx(corrected[name], rel=1e-3)
        assert difference.is_decided == (corrected[name] < 0.05)
        half = stats.t.isf(0.025 / len(tests), 4) * effect / stats.t.isf(p / 2, 4)
        ends = max(effect - half, 0.0) if difference.is_decided else effect - half, effect + half
        assert (difference.low, difference.high) == pytest.approx(ends, abs=1e-4)
    for axis, row in enumerate(found.effects):
        best, other = (results.take(VALUES[row.key].index(value), axis) for value in (row.best, row.other))
        settings = map(" ".join, itertools.product(*(VALUES[key] for key in VALUES if key != row.key)))
        assert row.leads == pytest.approx(dict(zip(settings, (best - other).mean(axis=-1).flat, strict=True)))
    assert found.decided == ["optimizer", "scheduler"]
    assert [i.keys for i in found.interactions if i.is_decided] == [("optimizer", "scheduler")]


def test_the_first_sentence_and_a_line_for_each_key_are_in_every_output(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    open_page: Callable[..., Page],
) -> None:  # fmt: skip
    comparison = comparing(sweep)
    sentence = comparison.verdict.sentence
    assert sentence == (
        "Decided: averaged over precision and scheduler, adamw is better than sgd by 0.065 in val/accuracy: 0.079 with "
        "wsd and 0.05 with cosine (5 paired seeds, p < 0.001, corrected for 6 comparisons). The lead depends on "
        "scheduler; --by optimizer,scheduler compares their settings. Decided too, on average: scheduler. Undecided: "
        "precision."
    )
    lines = to_text(comparison, None).splitlines()
    assert lines[0] == sentence
    _, (effects, caption), (interactions, _) = for_paper(comparison)
    assert caption.endswith("of the other keys. By paired t-tests, corrected for 6 comparisons.")
    assert effects[1][:4] == ["optimizer", "adamw", "sgd", "+0.0646"]
    assert "optimizer and scheduler" in {row[0] for row in interactions}
    assert any(" adamw minus sgd  +0.0791 with wsd, +0.0501 with cosine " in line for line in lines)
    assert comparison.factorial is not None
    open_end = replace(comparison.factorial.effects[0], low=-0.2557, high=0.0)
    other = replace(comparison.factorial, effects=[open_end])
    shown = factorial_section(other, "seeds", "max").tables[0].rows[0]
    assert shown[4] == "-0.2557 to below 0", "p, which decides, is below 0.05"
    less, _ = factorial_of(-planted_results(), tuple(VALUES), "min")
    ends = factorial_section(less, "seeds", "min").tables[0].rows[0][-1].split()
    assert 0 > float(ends[0]) > float(ends[4]), "the largest lead is the last one, also where less is better"
    rows = [(line.split()[0], {"decided", "undecided"} & {*line.split()}) for line in lines[1:] if line]
    assert [(key, *verdict) for key, verdict in rows if verdict] == [
        ("optimizer", "decided"), ("precision", "undecided"), ("scheduler", "decided"),
        ("optimizer", "undecided"), ("optimizer", "decided"), ("precision", "undecided"),
    ]  # fmt: skip
    assert cli.main(["compare", str(sweep), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"]["sentence"] == sentence
    found = record["factorial"]
    assert (found["decided"], found["num_comparisons"]) == (["optimizer", "scheduler"], 6)
    table = hydrant.compare(sweep).effects
    assert [*table["best"]] == [row["best"] for row in found["effects"]] == ["adamw", "fp32", "wsd"]
    assert hydrant.compare(sweep, by=["optimizer"]).effects.empty
    write_page(comparison, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    expect(page.locator("#verdict p").first).to_have_text(sentence)
    assert page.locator("#effects-table tbody tr").count() == 3
    assert page.locator("#interactions-table tr.best").count() == 1


def test_of_three_values_the_best_must_beat_each_and_changes_are_corrected(tmp_path: Path) -> None:
    """The lead of the second optimizer is 0.1 with the third schedule alone: one of four changes."""
    noise = np.random.default_rng(1)
    results = 0.5 + noise.normal(0, 0.001, (3, 3, 6))
    results[1, 2] += 0.1
    found, _ = factorial_of(results, ("optimizer", "scheduler"))
    effects = {(e.best, e.other): e.is_decided for e in found.effects if e.key == "optimizer"}
    assert effects == {("optimizer1", "optimizer0"): True, ("optimizer1", "optimizer2"): True}
    [one] = found.interactions
    assert (one.lead_of, one.change_to, one.num_changes) == (
        ("optimizer1", "optimizer0"), ("scheduler2", "scheduler0"), 4
    )  # fmt: skip
    change = results[1, 2] - results[0, 2] - results[1, 0] + results[0, 0]
    assert one.p == pytest.approx(4 * stats.ttest_1samp(change, 0).pvalue)
    assert one.is_decided
    assert found.num_comparisons == 5


@pytest.mark.parametrize("case", ["nested", "one key", "no common setting"])
def test_other_sweeps_compare_their_settings(case: str, tmp_path: Path) -> None:
    """Each optimizer with a rate of its own; one key; and rates of which no two optimizers share one."""
    rates = {"nested": {"adamw": [0.001], "sgd": [0.1]}, "one key": {"adamw": [0.1], "sgd": [0.1]},
             "no common setting": {"adamw": [0.001, 0.01], "sgd": [0.1, 1.0]}}[case]  # fmt: skip
    for optimizer, lrs in rates.items():
        for lr, seed in itertools.product(lrs, range(3)):
            keys = {"optimizer": optimizer, "optimizer.lr": lr, "seed": seed}
            write_run(tmp_path / f"{optimizer}-{lr}-{seed}", keys, 0.9 + seed / 100 + lr * seed)
    assert comparing(tmp_path).factorial is None


def test_a_grid_of_one_seed_beside_more_seeds_of_single_cells_tests_nothing(tmp_path: Path) -> None:
    """As the runs of a study whose study.json is damaged: its tuning, and the seeds of its test."""
    noise = np.random.default_rng(0)
    cells = [(o, lr, 0) for o in ("adamw", "sgd") for lr in (0.1, 0.2, 0.3)]
    cells += [(o, lr, seed) for o, lr in (("adamw", 0.2), ("sgd", 0.1)) for seed in range(1, 5)]
    for optimizer, lr, seed in cells:
        keys = {"optimizer": optimizer, "optimizer.lr": lr, "seed": seed}
        write_run(tmp_path / f"{optimizer}-{lr}-{seed}", keys, float(noise.uniform(0.5, 0.9)))
    assert comparing(tmp_path).verdict.status == "undecided"


@pytest.mark.parametrize(
    ("failed", "rows", "left_out", "num_seeds"),
    [
        # One run of sgd: its seed is left out, not the schedule, at which sgd is better.
        ([(1, 1, 3)], {"optimizer": False, "scheduler": True},
         ["seed 3 in optimizer=sgd", "seed 3 in scheduler=wsd"], 4),
        # No setting is complete: nothing is decided, though each p is small.
        ([(i, j, 3) for i in (0, 1, 2) for j in (0, 1)], {"optimizer": False, "scheduler": False}, [], 4),
        # The first optimizer has no result: the others interact.
        ([(0, j, seed) for j in (0, 1) for seed in range(5)], {"optimizer": True, "scheduler": False}, [], 5),
    ],
)  # fmt: skip
def test_failed_runs_of_a_factorial(
    failed: list[tuple[int, ...]], rows: dict[str, bool], left_out: list[str], num_seeds: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    means = np.array([[0.95, 0.80], [0.94, 0.94], [0.70, 0.60]])
    results = means[..., None] + np.random.default_rng(0).normal(0, 0.001, (3, 2, 5))
    for n, place in enumerate(np.ndindex(3, 2, 5)):
        optimizer, scheduler, seed = place
        keys = {"optimizer": ("adamw", "sgd", "zero")[optimizer], "scheduler": ("cosine", "wsd")[scheduler],
                "seed": seed}  # fmt: skip
        value, status = (None, "failed") if place in failed else (float(results[place]), "finished")
        write_run(tmp_path / str(n), keys, value, status=status)
    comparison = comparing(tmp_path)
    found = comparison.factorial
    assert found is not None
    decided = {e.key: e.is_decided for e in found.effects if e.other != "zero" or e.best == "sgd"}
    assert (decided, [key for key in rows if rows[key]]) == (rows, found.decided)
    assert found.left_out == left_out
    assert all(any(name in w.text for w in comparison.warnings) for name in left_out)
    assert min(e.num_pairs for e in found.effects) == num_seeds
    assert [i.is_decided for i in found.interactions] == [True]


def test_one_seed_or_unpaired_seeds_test_no_interaction() -> None:
    found, verdict = factorial_of(np.random.default_rng(0).normal(size=(2, 2, 1)), ("optimizer", "scheduler"))
    assert (found.decided, found.untested) == ([], [("optimizer", "scheduler")])
    assert "there is one seed of each" in verdict.sentence


def crossed(noise: np.random.Generator, leads: tuple[float, float]) -> Array:
    """Return results in which the first optimizer leads the second by so much, with each of two schedules."""
    return noise.normal(0, 0.01, (2, 2, 5)) + np.array([leads, (0, 0)])[..., None]


@pytest.mark.parametrize(
    ("leads", "mode", "start"),
    [
        ((0.3, -0.1), "max",
         "Decided: the lead of optimizer=optimizer0 over optimizer=optimizer1 in val/accuracy depends on scheduler: it "
         "is 0.31 with scheduler=scheduler0 and -0.098 with scheduler=scheduler1 (5 paired seeds, p < 0.001, corrected "
         "for 3 comparisons). --by optimizer,scheduler compares their settings."),
        ((0.3, -0.1), "min",
         "Decided: the lead of optimizer=optimizer1 over optimizer=optimizer0 in val/accuracy depends on scheduler: it "
         "is 0.31 with scheduler=scheduler0 and -0.098 with"),
        ((0.3, 0.2), "max",
         "Decided: averaged over scheduler, optimizer=optimizer0 is better than optimizer=optimizer1 by 0.26 in "
         "val/accuracy: 0.31 with scheduler=scheduler0 and 0.2 with scheduler=scheduler1 (5 paired seeds, p < 0.001, "
         "corrected for 3 comparisons). The lead depends on scheduler; --by optimizer,scheduler compares their "
         "settings."),
        ((0.0, 0.0), "max",
         "Undecided: averaged over optimizer, scheduler=scheduler1 leads scheduler=scheduler0 by 0.0047 in "),
    ],
)  # fmt: skip
def test_the_first_sentence_names_no_best_value_that_depends_on_another_key(
    leads: tuple[float, float], mode: str, start: str
) -> None:
    results = crossed(np.random.default_rng(0), leads)
    found, verdict = factorial_of(results, ("optimizer", "scheduler"), mode)
    assert verdict.sentence.startswith(start)
    [one] = found.interactions
    is_named = f"{one.lead_of[0]} over" in start
    assert is_named or verdict.winner or leads == (0.0, 0.0), "one direction for both"
    undecided = {effect.key for effect in found.effects if not effect.is_decided}
    assert all(key in verdict.sentence.partition("Undecided")[2] for key in undecided)
    assert (verdict.winner is not None) == (leads == (0.3, 0.2))
    assert verdict.sentence.endswith(" Undecided too: optimizer.") == (leads == (0.0, 0.0))


def test_all_numbers_of_the_first_sentence_are_of_the_seeds_that_p_is_of() -> None:
    """An optimizer lacks the two best seeds with one of the schedules."""
    sentences = list[str]()
    for lacking in (0, 1):
        results = np.array([(0.2, lacking / 10), (0, 0)])[..., None] + np.array([0, 0, 0, 0, 3, 3])
        results += np.random.default_rng(0).normal(0, 0.001, (2, 2, 6))
        results[lacking, 0, 4:] = np.nan
        found, verdict = factorial_of(results, ("optimizer", "scheduler"))
        first, second = results[..., :4].mean(axis=-1)
        assert found.interactions[0].leads == pytest.approx(first - second)
        assert (verdict.lead is None) == (verdict.winner is None), "the record says what the sentence says"
        sentences.append(verdict.sentence.partition(", corrected")[0])
    assert sentences == [
        "Decided: the lead of optimizer=optimizer0 over optimizer=optimizer1 in val/accuracy depends on scheduler: it "
        "is 0.2 with scheduler=scheduler0 and -0.0006 with scheduler=scheduler1 (4 paired seeds, p < 0.001",
        "Decided: averaged over scheduler, optimizer=optimizer0 is better than optimizer=optimizer1 by 0.15 in "
        "val/accuracy: 0.2 with scheduler=scheduler0 and 0.099 with scheduler=scheduler1 (4 paired seeds, p < 0.001",
    ]


@pytest.mark.parametrize("num_sweeps", [40, *slow((1000,))])
def test_where_each_schedule_has_another_best_optimizer_hardly_any_sweep_names_one(num_sweeps: int) -> None:
    """Also where the noise hides most interactions: the optimizers are equal on average."""
    noise, by, rates = np.random.default_rng(0), ("optimizer", "scheduler"), dict[float, float]()
    for lead in (0.01, 0.05):
        found = [factorial_of(crossed(noise, (lead, -lead)), by) for _ in range(num_sweeps)]
        winners = [str(verdict.winner).startswith("optimizer") for _, verdict in found]
        assert sum(winners) <= stats.binom.isf(0.001, num_sweeps, 0.05)
        rates[lead] = float(np.mean([one.interactions[0].is_decided for one, _ in found]))
    assert rates[0.01] < 0.9 < rates[0.05]


NEAR_COPIES = np.s_[..., :1, :]


def null_sweep(noise: np.random.Generator, shape: tuple[int, ...], *, are_copies: bool) -> Array:
    """Return results without an effect; those of the values of the last key are near-copies, or of their own."""
    if are_copies:
        return noise.normal(0, 0.01, shape)[NEAR_COPIES] + noise.normal(0, 0.0005, shape)
    return noise.normal(0, 0.01, shape) + noise.normal(0, 0.02, shape[-1])


SHAPES = [(2, 2, 2, 3), (2, 2, 2, 5), (2, 2, 2, 10), (2, 4, 3), (3, 3, 5), (2, 3, 2, 3)]


@pytest.mark.parametrize(
    ("shape", "num_sweeps"),
    [((2, 2, 2, 3), 60), *slow(*[(shape, 1000) for shape in SHAPES])],
)
def test_null_sweeps_are_decided_in_five_of_a_hundred_at_most(
    shape: tuple[int, ...], num_sweeps: int
) -> None:
    """Also a sweep of two optimizers with four values of micro_batch_size, whose results are near-copies."""
    noise, by = np.random.default_rng(0), ("optimizer", "scheduler", "precision")[: len(shape) - 1]
    decided = sum(
        is_anything_decided(*factorial_of(null_sweep(noise, shape, are_copies=n % 2 == 0), by))
        for n in range(num_sweeps)
    )
    assert decided <= stats.binom.isf(0.001, num_sweeps, 0.05)
