"""`hydrant bench`: every cell is compared with its eager one, and all files contain the same measurements."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from marks import slow
from repository import ROOT
from training_runs import UserModule

from hydrant import cli
from hydrant.extensions.bench.command import (
    CellResult,
    Measurement,
    plan_cells,
    table,
    with_baselines,
    with_defaults,
)

MLP = ("data=digits", "model.hidden=[8]")
QUICK = ("--updates", "2", "--warmup", "1")

PARTS = """
import os
import signal
from torch import nn
from torch._dynamo import register_backend

class Net(nn.Module):
    def __init__(self, *, input_shape, num_classes, hidden, dropout):
        super().__init__()
        self.linear = nn.Linear(64, num_classes)

    def forward(self, inputs):
        return self.linear(inputs.flatten(1))

@register_backend
def bench_raising(module, inputs):
    raise RuntimeError("no code for you")

@register_backend
def bench_dying(module, inputs):
    os.kill(os.getpid(), signal.SIGKILL)

@register_backend
def bench_wrong(module, inputs):
    return lambda *args: [1.5 * out if out.is_floating_point() else out for out in module(*args)]
"""


@pytest.fixture
def net(user_module: UserModule) -> Sequence[str]:
    """Overrides for a model of user code, whose module registers backends."""
    user_module("bench_parts", PARTS)
    return (
        "data=digits",
        "model._target_=bench_parts.Net",
        "allow_targets=[bench_parts]",
        "precision=fp32",
        "compile=default",
    )


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "bench.json").read_text())


def statuses(folder: Path) -> dict[str, str]:
    return {" ".join(cell["labels"].values()): cell["status"] for cell in record(folder)["cells"]}


def labels(*words: str) -> list[str]:
    return [" ".join(cell.labels.values()) for cell in plan_cells(words)]


@pytest.mark.slow
def test_each_group_of_cells_begins_with_its_eager_cell() -> None:
    scopes = ("compile.scope=task,model", "compile.mode=default")
    expected = ["fp32 eager", "fp32 default task", "fp32 default model", "bf16 eager", "bf16 default task",
                "bf16 default model"]  # fmt: skip
    for options in ("eager,default", "default,eager", "default"):
        assert labels("precision=fp32,bf16", f"compile={options}", *scopes) == expected
    assert labels("compile=default,eager", "precision=fp32", "seed=0,1") == [
        f"fp32 {option} {seed}"
        for option, seed in (("eager", 0), ("default", 0), ("eager", 1), ("default", 1))
    ]
    cells = plan_cells(["precision=bf16", "compile=default", "compile.scope=model", "compile.check=false"])
    assert [cell.baseline is cells[0] for cell in cells] == [True, True]
    assert cells[0].labels == {"precision": "bf16", "compile": "eager"}
    assert cells[1].config["compile"]["check"] is False


def test_defaults_depend_on_the_machine_and_complete_the_overrides() -> None:
    assert with_defaults([], on_gpu=False) == [
        "experiment=vit_tiny_fake", "precision=fp32,bf16", "compile=eager,default,blocks"
    ]  # fmt: skip
    assert with_defaults([], on_gpu=True)[0] == "experiment=vit_fake"
    overrides = ["experiment=digits_convnet", "precision=fp32", "compile=default"]
    assert with_defaults(overrides, on_gpu=True) == overrides
    assert not any(word.startswith("experiment") for word in with_defaults(["model=mlp"], on_gpu=True))


@pytest.mark.slow
def test_every_status_of_cell(net: Sequence[str], workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Correct, wrong, broken and refused cells, measured in rounds."""
    words = (
        *net[:-1],
        "compile=default,blocks",
        "compile.backend=eager,bench_wrong,bench_raising",
        "compile.check=false",
    )
    assert cli.main(["bench", *words, *QUICK, "--repeats", "2", "name=mixed"]) == 1
    out, err = capsys.readouterr()
    folder = workdir / "outputs" / "mixed"
    assert statuses(folder) == {
        "fp32 eager": "ok",
        "fp32 default eager": "ok",
        "fp32 default bench_wrong": "differs",
        "fp32 default bench_raising": "failed",
        "fp32 blocks eager": "refused",
        "fp32 blocks bench_wrong": "refused",
        "fp32 blocks bench_raising": "refused",
    }
    cells = record(folder)["cells"]
    assert [len(cell["repeats"]) for cell in cells] == [2, 2, 2, 1, 1, 1, 1]
    order = [line.partition(":")[0] for line in err.splitlines() if line.startswith("repeat")]
    names = ["compile=eager", *(f"compile=default compile.backend={b}" for b in ("eager", "bench_wrong"))]
    assert order[-3:] == [f"repeat 2 of 2, precision=fp32 {name}" for name in names]  # in rounds
    assert all(line.startswith("repeat 1 of 2") for line in order[:-3])
    good, wrong = cells[1], cells[2]
    assert len(good["repeats"][0]["update_seconds"]) == 2
    assert len(good["repeats"][0]["losses"]) == 3
    assert good["figures"]["speedup"] > 0
    assert good["figures"]["graphs"] == 1
    assert good["loss_difference"] <= good["tolerance"] < wrong["loss_difference"]
    assert wrong["figures"] == {}
    assert "no code for you" in cells[3]["error"]
    assert "has no repeated blocks" in cells[4]["error"]
    for text in (
        "differs: its loss differs from eager's by a ratio of 0.5",
        "failed: ",
        "refused: compile.scope: ",
        "1.00x",
    ):
        assert text in out


@pytest.mark.slow
def test_a_backend_that_is_wrong_or_kills_its_process_fails_only_its_cell(
    net: Sequence[str], workdir: Path
) -> None:
    # A fallback to eager is not a result.
    words = (*net, "compile.backend=bench_wrong,bench_dying,eager", "compile.on_failure=fallback")
    assert cli.main(["bench", *words, *QUICK, "--repeats", "1", "--output", "here"]) == 1
    assert list(statuses(workdir / "here").values()) == ["ok", "failed", "failed", "ok"]
    errors = [cell["error"] for cell in record(workdir / "here")["cells"]]
    assert "the loss is" in errors[1]
    assert "SIGKILL" in errors[2]


@pytest.mark.slow
def test_the_answer_is_the_file(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*MLP, "precision=fp32,bf16", "compile=dynamo")
    assert cli.main(["bench", *words, *QUICK, "--repeats", "2", "--json", "name=speed"]) == 0
    content = record(workdir / "outputs" / "speed")
    answer = {"version": 1, "command": "bench", "folder": "outputs/speed", **content}
    assert json.loads(capsys.readouterr().out) == answer
    assert content["overrides"] == [*words, "name=speed"]
    assert content["environment"]["torch"]
    figures = [cell["figures"] for cell in content["cells"]]
    assert [cell["speedup"] for cell in figures[::2]] == [1.0, 1.0]
    assert all(cell["speedup_over_fp32"] > 0 and cell["mfu_of_matmul"] > 0 for cell in figures)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--repeats", "0"), "--repeats: needs a whole number of 1 or more, not 0"),
        (("--speed",), "has no flag --speed"),
        (("compile=default", "compile.cache_dir=here"), "compile.cache_dir: each cell has"),
        ((*MLP, "precision=fp32", "compile=blocks,eager", "duration=2"), "duration: the run has 2 updates, but 13 are"),
        ((*MLP, "--output", "file"), "--output: file/bench.json cannot be written"),
        *slow(
            (("--updates", "ten"), "invalid int value: 'ten'"),
            (("fast",), "'fast' has no value"),
            (("precision=choice()",), "precision: "),
            (("optimizer.lr=interval(0,1)",), "optimizer.lr: a grid needs a list of values"),
            (("precision=fp31",), "precision: no option 'fp31'"),
        ),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_refused(
    words: Sequence[str], message: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "file").touch()
    assert cli.main(["bench", *words]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in workdir.iterdir()] == ["file"]


@pytest.mark.slow
def test_a_signal_stops_it_and_the_measurements_are_written(workdir: Path) -> None:
    command = [Path(sys.executable).with_name("hydrant"), "bench", *MLP, "precision=fp32", "compile=eager"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [*command, "--repeats", "1000", "--output", "here"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as bench:  # fmt: skip
        assert bench.stderr is not None
        while not bench.stderr.readline().startswith("repeat 1"):
            pass
        bench.send_signal(signal.SIGINT)
        out, err = bench.communicate(timeout=120)
    assert bench.returncode == 130
    assert err.splitlines()[-1] == "stopped by SIGINT"
    assert "1.00x" in out
    assert statuses(workdir / "here") == {"fp32 eager": "ok"}


def measured(loss: float, seconds: float, **fields: Any) -> Measurement:
    compiled = {"graphs": 1, "graph_breaks": [], "recompiles": [], "seconds": seconds}
    return Measurement(
        losses=[1.0, loss], update_seconds=[9 * seconds, seconds, seconds], compile=compiled, tolerance=0.01,
        flops_per_update=100, matmul_flops=400.0, peak_memory_gib=seconds, **fields,
    )  # fmt: skip


def two_results(eager: Sequence[Measurement], compiled: Sequence[Measurement]) -> list[CellResult]:
    names = ({"precision": "fp32", "compile": "eager"}, {"precision": "fp32", "compile": "default"})
    results = with_baselines(CellResult(name, {}) for name in names)
    results[0].repeats, results[1].repeats = list(eager), list(compiled)
    return results


def test_figures_are_medians_and_ratios_within_one_round() -> None:
    eager = [measured(0.5, seconds) for seconds in (2.0, 20.0, 4.0)]
    compiled = [measured(0.501, seconds) for seconds in (1.0, 5.0, 4.0)]
    figures = two_results(eager, compiled)[1].figures()
    assert (figures["update_ms"], figures["update_ms_min"], figures["update_ms_max"]) == (4000, 1000, 5000)
    assert (figures["speedup"], figures["speedup_min"], figures["speedup_max"]) == (2, 1, 4)
    assert figures["speedup_over_fp32"] == 2
    assert (figures["compile_seconds_cold"], figures["compile_seconds_warm"]) == (1.0, 4.5)
    assert figures["mfu_of_matmul"] == 100 / 4 / 400
    assert figures["peak_memory_gib"] == 5.0


def test_an_mfu_over_one_is_no_result() -> None:
    # 100 FLOPs in 1 s and in 0.2 s; the matrix product makes 400 in 1 s.
    results = two_results([measured(0.5, 1.0)], [measured(0.5, 0.2)])
    assert results[0].figures()["mfu_of_matmul"] == 0.25
    assert results[1].figures()["mfu_of_matmul"] is None
    lines = table(results).splitlines()
    assert "25.0%" in lines[1]
    assert "125" not in lines[2]


def test_mfu_is_relative_to_the_fastest_matrix_product() -> None:
    slowed = replace(measured(0.5, 1.0), matmul_flops=50.0)
    results = two_results([slowed, measured(0.5, 1.0), slowed], [slowed])
    assert results[0].figures()["mfu_of_matmul"] == 0.25


@pytest.mark.parametrize(
    ("repeats", "status"),
    [
        ([measured(0.509, 1.0)], "ok"),
        ([measured(0.511, 1.0)], "differs"),
        ([measured(0.5, 1.0), measured(0.52, 1.0)], "differs"),
        ([measured(0.5, 1.0), Measurement(error="it died")], "failed"),
        ([Measurement(error="compile: no", is_refused=True)], "refused"),
        ([], "not measured"),
    ],
)
def test_only_a_cell_with_result_of_eager_has_figures(repeats: Sequence[Measurement], status: str) -> None:
    results = two_results([measured(0.5, 2.0)] * 2, repeats)
    assert [result.status for result in results] == ["ok", status]
    assert bool(results[1].figures()) == (status == "ok")
    assert ("2.00x" in table(results)) == (status == "ok")


@pytest.mark.slow
def test_the_first_repeat_compiles_cold_and_the_next_reuses_its_code(workdir: Path) -> None:
    words = (*MLP, "precision=fp32", "compile=default,default", "compile.scope=task,model")
    assert cli.main(["bench", *words, *QUICK, "--repeats", "2", "--output", "here"]) == 0
    for cell in record(workdir / "here")["cells"][1:]:
        cold, warm = (repeat["compile"]["cache"] for repeat in cell["repeats"])
        assert cold["misses"] > 0
        assert cold["hits"] == 0
        assert warm["misses"] == 0
        assert warm["hits"] > 0
