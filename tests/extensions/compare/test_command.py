"""The command line of `hydrant compare`: its tables, JSON and CSV, and its errors."""

import csv
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from planted import write_run
from processes import modules_after

from hydrant import cli


@pytest.fixture
def compare_planted(planted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Compare the planted runs. Returns the exit status and the output."""
    monkeypatch.chdir(planted.parent)

    def run(*words: str) -> tuple[int, str]:
        status = cli.main(["compare", "sweep", *words])
        printed = capsys.readouterr()
        return status, printed.err if status else printed.out

    return run


def test_the_terminal_shows_the_verdict_and_what_casts_doubt_on_it(compare_planted) -> None:
    status, text = compare_planted("--target", "val/accuracy>=0.9")
    assert status == 0
    assert "20 runs: 17 finished, 2 failed, 1 missing. val/accuracy after the last update; higher" in text
    places = [
        text.index(words)
        for words in ("! the code commit differs", "lion       wsd        3/5", "  seed  state")
    ]
    assert places == sorted(places)
    assert text.startswith(
        "Undecided: lion wsd has a better mean than adamw cosine, but 2 of the "
        "5 runs of lion wsd have no result (2 failed).\n"
    )
    assert "15 of 20 runs reach val/accuracy>=0.9" in text
    assert ["optimizer=adamw", "scheduler=wsd", "5/5", "75", "4800", "0.75"] in [
        line.split() for line in text.splitlines()
    ]
    assert text.count("train/loss became NaN or infinite") == 2
    assert "\033" not in text, "no escape codes without a terminal"
    rows = [line.split() for line in text.splitlines()]
    assert ["lion", "wsd", "3/5", "0.9704"] in [row[:4] for row in rows]
    assert ["sgd", "cosine", "4/5", "0.9001"] in [row[:4] for row in rows]


def test_json_and_csv_hold_the_same_runs(compare_planted) -> None:
    status, text = compare_planted("--json", "--details", "--target", "val/accuracy>=0.9")
    assert status == 0
    record = json.loads(text)
    _, table = compare_planted("--csv", "--target", "val/accuracy>=0.9")
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


def test_json_is_small_without_details(compare_planted) -> None:
    """The verdict, the groups, the best first, and the warnings: at most 4 KiB for 20 runs."""
    everything = json.loads(compare_planted("--json", "--details")[1])
    _, text = compare_planted("--json")
    assert len(text) <= 4096
    brief = json.loads(text)
    assert brief["verdict"] == everything["verdict"]
    assert brief["states"] == {"finished": 17, "failed": 2, "missing": 1}
    means = [group["mean"] for group in brief["groups"]]
    assert means == sorted((group["mean"] for group in everything["groups"]), reverse=True)
    assert (brief["num_runs"], brief["num_groups"]) == (20, len(everything["groups"]))
    assert brief["num_warnings"] == len(everything["warnings"])
    assert "runs" not in brief


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metric", "val/acuracy"], "--metric: unknown metric 'val/acuracy'; did you mean 'val/accuracy'? Options: "),
        (["--target", "val/los<=1"], "--target: unknown metric 'val/los'; did you mean 'val/loss'? Options: "),
        (["--by", "optimiser"], "--by: unknown key 'optimiser'; did you mean 'optimizer'? Options: "),
        (["--baseline", "optimizer=lamb"],
         "--baseline: 'optimizer=lamb' matches no group; give one of: optimizer=adamw,"),
        (["--baseline", "optimizer=adamw"], "--baseline: 'optimizer=adamw' matches 2 groups; give one of: optimizer="),
        (["--baseline", "lr=1"], "--baseline: unknown key 'lr'. Options: optimizer, scheduler"),
        (["--difference", "nan"], "--difference: needs a number above 0, not nan"),
        (["--html", "/proc/report.html"], "--html: /proc/report.html cannot be written ("),
        (["swep"], "RUNS: 'swep' is not a folder; did you mean 'sweep'? Folders in .: sweep"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_reported_in_one_line(
    words: list[str], message: str, compare_planted
) -> None:
    status, text = compare_planted(*words)
    assert status == 2
    assert text.startswith(f"error: {message}")
    assert len(text.splitlines()) == 1


def test_runs_without_metrics_are_an_error(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(workdir / "run", {"seed": 0}, None, status="failed")
    (run / "metrics.jsonl").unlink()
    assert cli.main(["compare", "run"]) == 2
    assert "none of the runs has logged a metric yet" in capsys.readouterr().err


def test_a_single_run_is_shown_without_an_interval(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(workdir / "run", {"seed": 0}, 0.9)
    assert cli.main(["compare", "run", "--html", "deep/report.html"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("One run: val/accuracy 0.9. There is nothing to compare it with.\n")
    assert "best of" not in printed
    assert "p:" not in printed, "no table of one group"
    assert "deep/report.html shows everything, with figures" in printed
    assert (workdir / "deep" / "report.html").is_file()


def test_compare_imports_neither_torch_nor_a_tracker(planted: Path, tmp_path: Path) -> None:
    words = ["compare", str(planted), "--html", str(tmp_path / "report.html")]
    modules = modules_after(f"from hydrant.cli import main; assert main({words}) == 0")
    assert "scipy" in modules
    slow = {"torch", "torchvision", "timm", "wandb", "matplotlib", "tensorboard", "scipy.stats"}
    assert modules & slow == set()


@pytest.mark.parametrize(("kind", "between"), [("markdown", " | "), ("latex", " & "), ("csv", ",")])
def test_a_table_for_a_paper_has_the_values_of_the_answer(
    kind: str, between: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("5%_a&b", "{0}~^|#$")
    for name, mean in zip(names, (0.9, 0.8), strict=True):
        for seed in range(3):
            keys = {"scheduler.warmup": name, "seed": seed}
            write_run(tmp_path / f"{name}-{seed}", keys, mean * (1 + seed**2 / 1000))
    asked = ["compare", str(tmp_path), "--by", "scheduler.warmup"]
    assert cli.main([*asked, "--table", kind]) == 0
    (text, caption), marks = capsys.readouterr(), {r"\textasciitilde{}": "~", r"\textasciicircum{}": "^"}
    if kind == "latex" and shutil.which("pdflatex"):
        page = rf"\documentclass{{article}}\begin{{document}}{text}\end{{document}}"
        subprocess.run(["pdflatex", "-halt-on-error"], input=page, text=True, check=True, cwd=tmp_path)
    for escaped, mark in (marks | {f"\\{mark}": mark for mark in "&%$#_{}|"}).items():
        text = text.replace(escaped, mark)
    assert "with the 95 % interval of the mean by Student's t" in text + caption
    rows = [line for line in text.splitlines() if between in line and "---" not in line]
    lines = [line.strip("| \\").split(between) for line in rows]
    titles = ["scheduler.warmup", "n", "val/accuracy (higher is better)", "95 % interval", "verdict"]
    assert lines[0] == titles
    assert cli.main([*asked, "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    for row, group, name, word in zip(lines[1:], groups, names, ("best", "worse"), strict=True):
        assert (row[0], int(row[1]), row[4]) == (name, group["num"], word)
        known = [group["mean"], group["low"], group["high"]]
        numbers = [row[2], *row[3].split(" to ")]
        assert [*map(float, numbers)] == pytest.approx(known, abs=6e-5)
        assert all(len(text.partition(".")[2]) == 4 for text in numbers), "0.9000 beside 0.8015"
