"""`hydrant.load_runs` and `hydrant.compare`: the numbers of the command, as tables."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marks import slow
from planted import planted_results, write_planted
from processes import modules_after
from reports import data_of

import hydrant
from hydrant import cli

BY_OPTIMIZER = {
    "by": ["optimizer"],
    "metric": "train/loss",
    "baseline": "optimizer=sgd",
    "target": "train/loss<=0.5",
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with failed and missing runs."""
    return write_planted(tmp_path_factory.mktemp("planted") / "sweep")


@pytest.mark.parametrize("options", [BY_OPTIMIZER, *slow({}, {"mode": "min", "difference": 2.0})])
def test_the_numbers_are_those_of_the_command(
    study: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        f"--{key.replace('_', '-')}={','.join(v) if isinstance(v, list) else v}" for key, v in options.items()
    ]
    comparison = hydrant.compare(study, **options)
    assert cli.main(["compare", str(study), "--json", "--details", *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    shown = {"version": 1, "command": "compare", **comparison.to_dict()}
    assert json.loads(json.dumps(shown)) == printed
    assert comparison.winner == printed["winner"]
    assert len(comparison.warnings) == len(printed["warnings"]) > 0
    for (name, shown), group in zip(comparison.groups.iterrows(), printed["groups"], strict=True):
        assert name == group["name"]
        assert {key: shown[key] for key in group["labels"]} == group["labels"]
        assert (shown["num"], shown["num_runs"]) == (group["num"], group["num_runs"])
        versus = group["versus"] or {}
        expected = [group[key] for key in ("mean", "std", "low", "high")]
        expected += [versus.get(key) for key in ("mean", "low", "high", "p", "p_holm")]
        figures = [
            "mean",
            "std",
            "low",
            "high",
            "difference",
            "difference_low",
            "difference_high",
            "p",
            "p_holm",
        ]
        assert [None if value != value else value for value in shown[figures]] == expected
    cli.main(["compare", str(study), *words])
    assert capsys.readouterr().out.strip() == str(comparison)


def test_runs_are_given_by_path_or_as_objects(study: Path, tmp_path: Path) -> None:
    runs = [
        hydrant.load_run(study / f"optimizer-{name}_seed-0")
        for name in ("sgd_scheduler-cosine", "lion_scheduler-wsd")
    ]
    comparison = hydrant.compare(*runs)
    assert comparison.to_dict() == hydrant.compare(*(str(run.folder) for run in runs)).to_dict()
    comparison.write_page(tmp_path / "page.html")
    assert [run["name"] for run in data_of(tmp_path / "page.html")["runs"]] == [
        run.folder.name for run in runs
    ]


def test_a_table_has_a_row_for_each_run(study: Path) -> None:
    table = hydrant.load_runs(study)
    assert table["status"].value_counts().to_dict() == {"finished": 17, "failed": 2, "missing": 1}
    for (optimizer, scheduler), results in planted_results().items():
        for seed, final in enumerate(results):
            row = table.loc[str(study / f"optimizer-{optimizer}_scheduler-{scheduler}_seed-{seed}")]
            assert (row["optimizer"], row["scheduler"], row["seed"]) == (optimizer, scheduler, seed)
            if row["status"] == "finished":
                assert row["val/accuracy"] == row["best val/accuracy"] == final
                assert row["num_updates"] == 100
            else:
                assert row["best val/accuracy"] != row["best val/accuracy"]  # NaN


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: hydrant.load_runs("nowhere"), "'nowhere' is not a folder"),
        (lambda: hydrant.load_runs(), "give run folders"),
        (lambda: hydrant.compare("nowhere"), "'nowhere' is not a folder"),
        (lambda: hydrant.compare("x", mode="most"), "--mode: unknown value 'most'"),  # type: ignore[arg-type]
        (lambda: hydrant.compare("x", by="seed"), "--by: needs a list of strings, not 'seed'"),
        (
            lambda: hydrant.compare("x", metrics="a"),
            "hydrant.compare has no such argument; did you mean metric=",
        ),  # type: ignore[call-arg]
        (lambda: hydrant.load_runs(outputs=1), "hydrant.load_runs has no such argument; it has runs"),  # type: ignore[call-arg]
        (lambda: hydrant.compare("x", difference=-1), "--difference: needs a number above 0, not -1"),
    ],
    ids=["runs", "none", "compare", "mode", "by", "argument", "no such", "difference"],
)
@pytest.mark.usefixtures("workdir")
def test_a_wrong_word_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(hydrant.ConfigError, match=words):
        call()


def test_without_pandas_the_command_that_installs_it_is_named(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrant.installation.find_spec", lambda module: None)
    message = r"a table of results needs pandas: .*pip install .*\[pandas\]"
    with pytest.raises(hydrant.ConfigError, match=message):
        hydrant.load_runs(study)


def test_hydrant_has_its_functions_and_imports_them_alone() -> None:
    assert {"compare", "load_runs"} <= set(dir(hydrant))
    assert {"torch", "pandas", "hydra"}.isdisjoint(modules_after("import hydrant; hydrant.compare"))
