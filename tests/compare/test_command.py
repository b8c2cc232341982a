"""`hydrant compare` as it is called: its tables, JSON and CSV, and what it says of wrong words."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from planted import write_run

from hydrant import cli

ROOT = Path(__file__).parents[2]


@pytest.fixture
def told(planted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Compare the planted runs; the exit status and what was printed."""
    monkeypatch.chdir(planted.parent)

    def run(*words: str) -> tuple[int, str]:
        status = cli.main(["compare", "sweep", *words])
        printed = capsys.readouterr()
        return status, printed.err if status else printed.out

    return run


def test_the_terminal_names_the_winner_and_what_speaks_against_it(told) -> None:
    status, text = told("--target", "val/accuracy>=0.9")
    assert status == 0
    assert (
        "20 runs: 17 finished, 2 failed, 1 missing. val/accuracy after the last update; higher is better."
        in text
    )
    assert text.index("! the code commit differs") < text.index("optimizer  scheduler  seed  state")
    assert (
        "best: optimizer=adamw scheduler=cosine, val/accuracy 0.9504 (95 % interval 0.9461 to 0.9547, n = 5)"
        in text
    )
    assert "next: optimizer=adamw scheduler=wsd" in text
    assert "best - next: +0.0220 (95 % interval 0.01839 to 0.02562, p <0.001, 5 pairs; optimistic," in text
    assert "The baseline is the best group: chosen by these results, it makes p optimistic." in text
    assert (
        "not counted as best: optimizer=lion scheduler=wsd, 0.9704, because 2 of its 5 runs have no result (2 failed)"
        in text
    )
    assert (
        "missing: 2 of 6 cells have no run: optimizer=lion scheduler=cosine; optimizer=sgd scheduler=wsd"
        in text
    )
    assert "15 of 20 runs reach val/accuracy>=0.9" in text
    assert ["optimizer=adamw", "scheduler=wsd", "5/5", "75", "4800", "0.75"] in [
        line.split() for line in text.splitlines()
    ]
    assert text.count("train/loss became NaN or infinite") == 2
    assert "\033" not in text, "plain where it is no terminal"
    rows = [line.split() for line in text.splitlines()]
    assert ["lion", "wsd", "3/5", "0.9704"] in [row[:4] for row in rows]
    assert ["sgd", "cosine", "4/5", "0.9001"] in [row[:4] for row in rows]


def test_json_and_csv_hold_the_same_runs(told) -> None:
    status, text = told("--json", "--target", "val/accuracy>=0.9")
    assert status == 0
    record = json.loads(text)
    _, table = told("--csv", "--target", "val/accuracy>=0.9")
    rows = list(csv.DictReader(io.StringIO(table)))
    assert len(rows) == len(record["runs"]) == 20
    for row, run in zip(rows, record["runs"], strict=True):
        assert (row["run"], row["state"], row["seed"]) == (run["name"], run["state"], run["labels"]["seed"])
        assert row["val/accuracy"] == ("" if run["final"] is None else str(run["final"]))
        reached = run["to_target"]["updates"]
        assert row["updates to val/accuracy>=0.9"] == ("" if reached is None else str(reached))
    assert record["winner"] == "optimizer=adamw scheduler=cosine"
    assert record["groups"][0]["states"] == {"finished": 5}
    assert "nan" not in text.lower().replace("became nan", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metric", "val/acuracy"], "--metric: unknown metric 'val/acuracy'; did you mean 'val/accuracy'? Options: "),
        (["--target", "val/los<=1"], "--target: unknown metric 'val/los'; did you mean 'val/loss'? Options: "),
        (["--by", "optimiser"], "--by: unknown key 'optimiser'; did you mean 'optimizer'? Options: "),
        (["--baseline", "optimizer=lamb"], "--baseline: 'optimizer=lamb' is no group; give one of: optimizer=adamw,"),
        (["--baseline", "optimizer=adamw"], "--baseline: 'optimizer=adamw' are 2 groups; give one of: optimizer="),
        (["--baseline", "lr=1"], "--baseline: unknown key 'lr'. Options: optimizer, scheduler"),
        (["--price-per-hour", "nan"], "--price-per-hour: nan is no price; give what one run costs an hour"),
        (["--json", "--csv"], "hydrant compare: --csv: not allowed with argument --json"),
        (["--html", "/proc/report.html"], "--html: /proc/report.html cannot be written ("),
        (["swep"], "RUNS: 'swep' is no folder; did you mean 'sweep'? Folders in .: sweep"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(words: list[str], message: str, told) -> None:
    status, text = told(*words)
    assert status == 2
    assert text.startswith(f"error: {message}")
    assert len(text.splitlines()) == 1


def test_runs_that_have_logged_nothing(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(workdir / "run", {"seed": 0}, None, status="failed")
    (run / "metrics.jsonl").unlink()
    assert cli.main(["compare", "run"]) == 2
    assert "none of the runs has logged anything yet" in capsys.readouterr().err


def test_one_run_is_compared_with_nobody(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(workdir / "run", {"seed": 0}, 0.9)
    assert cli.main(["compare", "run", "--html", "deep/report.html"]) == 0
    printed = capsys.readouterr().out
    assert "best: all runs, val/accuracy 0.9 (n = 1, too few for an interval)" in printed
    assert "deep/report.html shows all of it" in printed
    assert (workdir / "deep" / "report.html").is_file()


def test_neither_torch_nor_a_tracker_is_imported(planted: Path, tmp_path: Path) -> None:
    words = ["compare", str(planted), "--html", str(tmp_path / "report.html")]
    code = f"import sys; from hydrant.cli import main; main({words}); print(*sorted(sys.modules), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = {name.partition(".")[0] for name in done.stdout.splitlines()}
    assert "scipy" in modules
    assert modules & {"torch", "torchvision", "timm", "wandb", "matplotlib", "tensorboard"} == set()
