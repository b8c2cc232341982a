"""Compiled optimizer steps: schedules cause no recompilation, weights equal the eager ones, resume is exact."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from configs import optimizer_node
from marks import slow, slow_but
from repository import ROOT, options_of
from run_folders import assert_same_state, rows, rows_without_compile, summary, training, weights
from torch import nn
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode
from training_runs import Train, UserModule, whole_and_resumed

from hydrant import cli
from hydrant.config.instantiate import instantiate_node
from hydrant.extensions.compile.compiled_step import COMPILED as COMPILED_OPTIMIZERS
from hydrant.extensions.compile.compiled_step import NUM_WARMUP_CALLS, compile_step, optimizer_name, why_eager
from hydrant.optimizers.kernels import OptimizerStep
from hydrant.optimizers.scheduled_fields import ScheduledField

UPDATES = 8
COMPILE = ("compile=default", "compile.backend=aot_eager", "compile.optimizer=true")
VALUES = {"lr": 1e-2, "weight_decay": 0.1, "momentum": 0.9, "betas.0": 0.9, "rho": 0.9, "alpha": 0.9}
PAGE = (ROOT / "docs" / "internals" / "compiled-updates.md").read_text()
LOOSE = ("muon", "normuon", "torch_muon", "timm adafactorbv")  # these compute in bfloat16


def table() -> Iterator[tuple[str, str, str]]:
    """Yield (optimizer, field, `compiled` or `eager`) as docs/internals/compiled-updates.md says."""
    for row in re.findall(r"^\| `.*", PAGE.partition("## Table")[2].partition("## ")[0], re.MULTILINE):
        names, *fields = (re.findall(r"`([^`]+)`", cell) for cell in row.strip("|").split("|"))
        for entry, listed in zip(("compiled", "eager"), fields, strict=True):
            yield from ((name, field, entry) for name in names for field in listed)


CELLS = [cell for cell in table() if cell[0].partition(" ")[0] in options_of("optimizer")]
COMPILED = [(name, field) for name, field, entry in CELLS if entry == "compiled"]


@pytest.mark.extension
def test_the_table_has_every_optimizer() -> None:
    options = {*options_of("optimizer")} - {"timm", "library"}
    assert {name for name, *_ in table() if not name.startswith("timm ")} == options


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def optimizer_over(net: Any, name: str, *more: str) -> Any:
    option, _, timm_name = name.partition(" ")
    factory = instantiate_node(
        optimizer_node(option, *([f"optimizer.name={timm_name}"] if timm_name else []), *more)
    )
    if name == "lbfgs":  # takes no groups
        return factory(list(net.parameters()))
    groups = [{"params": [net[n].weight for n in (0, 2)]}, {"params": [net[n].bias for n in (0, 2)]}]
    return factory(groups)


def advance(
    net: Any, optimizer: Any, field: str, step: OptimizerStep, first: int = 0, last: int = UPDATES
) -> list[int]:
    """Take steps `first` to `last` with scheduled lr and field; return the number of graphs after each step."""
    num_graphs = []
    for n in range(first, last):
        for group_idx in range(len(optimizer.param_groups)):
            for name in ("lr", field):
                write(optimizer, group_idx, name, VALUES[name] * (1 - n / (2 * UPDATES)) / (1 + group_idx))
        generator = torch.Generator().manual_seed(n)
        for parameter in net.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        step()
        num_graphs.append(counters["stats"]["unique_graphs"])
    return num_graphs


def write(optimizer: Any, group_idx: int, field: str, value: float) -> None:
    if field.partition(".")[0] in optimizer.param_groups[group_idx]:
        ScheduledField(optimizer, group_idx, field, lambda _: value).write(0)


def check_cell(name: str, field: str, backend: str) -> None:
    plain, net = model(), model()
    eager, optimizer = optimizer_over(plain, name), optimizer_over(net, name)
    scheduled = {"lr", field}
    advance(plain, eager, field, OptimizerStep(eager))
    counters.clear()
    step = compile_step(optimizer, scheduled, {"backend": backend})
    num_graphs = advance(net, optimizer, field, step, 0, 4)
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict(), step.state_dict()))
    num_graphs += advance(net, optimizer, field, step, 4)
    assert counters["stats"]["unique_graphs"] >= 1
    assert len(set(num_graphs[NUM_WARMUP_CALLS:])) == 1
    tolerance = 2e-3 if name in LOOSE else 1e-5
    for actual, expected in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)
    torch._dynamo.reset()
    again = model()
    resumed = optimizer_over(again, name)
    again.load_state_dict(saved[0])
    step = compile_step(resumed, scheduled, {"backend": backend})
    resumed.load_state_dict(saved[1])
    step.load_state_dict(saved[2])
    advance(again, resumed, field, step, 4)
    assert_same_state(dict(again.state_dict()), dict(net.state_dict()))


@pytest.mark.parametrize(
    ("name", "field"),
    [
        pytest.param(*cell, marks=[] if cell == ("adamw", "lr") else pytest.mark.slow)
        for cell in COMPILED
        if not cell[0].startswith("timm")
    ],
)
def test_a_step_documented_as_compiled_compiles_once_and_equals_eager(name: str, field: str) -> None:
    check_cell(name, field, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "field"), COMPILED)
def test_a_step_documented_as_compiled_does_so_with_inductor(name: str, field: str) -> None:
    check_cell(name, field, "inductor")


@pytest.mark.filterwarnings("ignore:It is highly recommended to have 'opt_einsum'")
@pytest.mark.parametrize(("name", "field"), [(n, f) for n, f, entry in CELLS if entry == "eager"])
def test_a_step_documented_as_eager_logs_why(
    name: str, field: str, logged_warnings: Callable[[], list[str]]
) -> None:
    step = compile_step(optimizer_over(model(), name), {"lr", field}, {"backend": "aot_eager"})
    assert isinstance(step, OptimizerStep)
    [warning] = logged_warnings()
    assert re.fullmatch(r"the step of \w+ stays eager: .*", warning)


QUICK = ("adam", "adamw", "lamb", "lion", "sgd", "torch_muon")  # the others are slow
CAPTURED = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
    for name, field in COMPILED
    if field == "lr"
]
CONSTANT_DECAY = ("lamb", "timm laprop", "timm lars")  # docs/internals/compiled-updates.md says so


def graphs_of(name: str, decay: float, lr: float) -> tuple[list[str], dict[str, Any]]:
    """Return the code that Dynamo passes to the backend, and the weights after five updates."""
    graphs: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        del inputs
        graphs.append(module.code)
        return module.forward

    net = model()
    optimizer = optimizer_over(net, name)
    for group in optimizer.param_groups:
        group["lr"] = lr
        if "weight_decay" in group:
            group["weight_decay"] = decay
    step = compile_step(optimizer, {"lr"}, {"backend": backend})
    advance_by_hand(net, optimizer, step, lr)
    return graphs, dict(net.state_dict())


def advance_by_hand(net: Any, optimizer: Any, step: OptimizerStep, lr: float) -> None:
    """Take five steps with scheduled lr."""
    for n in range(5):
        for group_idx in range(len(optimizer.param_groups)):
            write(optimizer, group_idx, "lr", lr / (1 + n))
        generator = torch.Generator().manual_seed(n)
        for parameter in net.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        step()


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPTURED)
def test_the_code_contains_neither_lr_nor_weight_decay(name: str) -> None:
    """So that the jobs of a sweep share it. The weight decay equals that of the eager optimizer."""
    one, _ = graphs_of(name, 0.1, 1e-2)
    torch._dynamo.reset()
    other, compiled_weights = graphs_of(name, 0.25, 3e-3)
    assert one
    assert (one == other) is (name not in CONSTANT_DECAY)
    plain = model()
    eager = optimizer_over(plain, name)
    for group in eager.param_groups:
        group["lr"] = 3e-3
        if "weight_decay" in group:
            group["weight_decay"] = 0.25
    advance_by_hand(plain, eager, OptimizerStep(eager), 3e-3)
    tolerance = 2e-3 if name in LOOSE else 1e-5
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(compiled_weights[key], value, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("adam", ["+optimizer.decoupled_weight_decay=true", "+optimizer.maximize=true"]),
        ("timm adoptw", []),
        pytest.param("timm madgradw", [], marks=pytest.mark.slow),
        pytest.param("timm adafactorbv", ["+optimizer.kwargs.unscaled_wd=true"], marks=pytest.mark.slow),
        pytest.param("timm adabelief", ["+optimizer.kwargs.decoupled_decay=false"], marks=pytest.mark.slow),
        pytest.param("timm adabelief", ["+optimizer.kwargs.fixed_decay=true"], marks=pytest.mark.slow),
        *slow(
            ("adam", ["+optimizer.maximize=true"]),
            ("sgd", ["+optimizer.maximize=true", "optimizer.momentum=0"]),
        ),
    ],
)
def test_every_kind_of_weight_decay_equals_the_eager_one(name: str, words: list[str]) -> None:
    plain, net = model(), model()
    eager, compiled = (optimizer_over(m, name, "optimizer.weight_decay=0.1", *words) for m in (plain, net))
    advance_by_hand(plain, eager, OptimizerStep(eager), 1e-2)
    advance_by_hand(net, compiled, compile_step(compiled, {"lr"}, {"backend": "eager"}), 1e-2)
    tolerance = 2e-3 if name in LOOSE else 1e-6
    for one, other in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)
    assert [g["weight_decay"] for g in compiled.param_groups] == [0.1, 0.1]


@pytest.mark.slow
def test_the_table_has_every_optimizer_that_compiles() -> None:
    names = {optimizer_name(optimizer_over(model(), name)) for name, _ in COMPILED}
    assert names - {f"hydrant.extensions.{kind}MuonWithAdamW" for kind in ("", "Nor")} == COMPILED_OPTIMIZERS


@pytest.mark.slow
def test_sgd_without_state_compiles(train: Train) -> None:
    """Without state, the first step cannot be recognised by it."""
    folder = train("tracker=local", *COMPILE, "optimizer=sgd", "optimizer.momentum=0", "duration=6", "log_every=1",
                   "model.hidden=[8]")  # fmt: skip
    assert summary(folder)["compile"]["graphs"] == 2


@pytest.mark.slow
def test_many_optimizers_of_one_class_compile_separately(train: Train) -> None:
    """More of them than torch allows graphs for one code object."""
    layers = [f"hidden.{n}" for n in range(10)] + ["classifier"]
    words = [f"+optimizers.part{n}.parts=[{layer}]" for n, layer in enumerate(layers)]
    folder = train("tracker=local", *COMPILE, f"model.hidden={[8] * 10}", "duration=5", "log_every=1", *words)
    assert summary(folder)["compile"]["graphs"] == 1 + len(layers)
    assert summary(folder)["compile"]["recompiles"] == summary(folder)["compile"]["graph_breaks"] == 0


@pytest.mark.parametrize("name", ["sgd", "adamw", *slow("muon")])
def test_groups_do_not_share_their_lr(name: str) -> None:
    net = model()
    optimizer = optimizer_over(net, name)
    advance(net, optimizer, "lr", compile_step(optimizer, {"lr"}, {"backend": "eager"}), 0, 2)
    rates = [group["lr"] for group in optimizer.param_groups]
    assert all(rate.dtype == torch.float64 and rate.shape == () for rate in rates)
    assert len({id(rate) for rate in rates}) == len(rates)


@pytest.mark.parametrize("kernel", ["fused", *slow("foreach")])
def test_kernels_that_take_numbers_stay_eager(kernel: str, train: Train) -> None:
    folder = train("tracker=local", "compile=default", "compile.backend=aot_eager", "compile.optimizer=true",
                   f"optimizer.{kernel}=true", "duration=4", "log_every=1", "model.hidden=[8]")  # fmt: skip
    log = (folder / "train.log").read_text()
    assert log.count("the step of AdamW stays eager") == 1
    assert f"(optimizer.{kernel}=true)" in log


def test_an_unknown_optimizer_stays_eager_with_a_warning(train: Train, workdir: Path) -> None:
    option = workdir / "conf" / "optimizer" / "schedule_free.yaml"
    option.parent.mkdir(parents=True)
    option.write_text("_target_: schedulefree.AdamWScheduleFree\n_partial_: true\nlr: 0.01\n")
    words = ("tracker=local", "optimizer=schedule_free", "allow_targets=[schedulefree]", "scheduler=constant",
             "duration=4", "log_every=1", "model.hidden=[8]")  # fmt: skip
    folder = train(*words, *COMPILE)
    log = (folder / "train.log").read_text()
    assert (
        log.count("the step of AdamWScheduleFree stays eager: it is not known whether it compiles once") == 1
    )
    assert summary(folder)["compile"]["graphs"] == 1


FLAKY = """
from torch import nn

class Flaky(nn.Module):
    def __init__(self, *, input_shape, num_classes, hidden, dropout):
        super().__init__()
        self.one, self.other, self.calls = nn.Linear(64, 10), nn.Linear(64, 10), 0

    def forward(self, inputs):
        self.calls += self.training
        uses_other = self.calls % 6 == 0  # so that gradients come and go
        return self.one(inputs.flatten(1)) + (self.other(inputs.flatten(1)) if uses_other else 0)
"""


@pytest.mark.slow
def test_a_step_that_recompiles_becomes_eager_and_stays_so_after_a_resume(
    train: Train, user_module: UserModule
) -> None:
    user_module("flaky", FLAKY)
    words = ("tracker=local", "model._target_=flaky.Flaky", "allow_targets=[flaky]", *COMPILE, "duration=9",
             "log_every=1", "eval_every=9", "compile.fullgraph=false", "compile.check=false")  # fmt: skip
    folder = train(*words)
    log = (folder / "train.log").read_text()
    assert log.count("the step of AdamW was recompiled in its call 4 and is eager from now on") == 1
    state = training(folder)
    assert state["optimization"]["steps"] == {"main": {"is_compiled": False}}
    assert isinstance(state["optimization"]["optimizers"]["main"]["param_groups"][0]["lr"], float)


@pytest.mark.parametrize("capturable", [False, True])
def test_a_step_that_becomes_eager_counts_its_steps_on_the_host(capturable: bool) -> None:
    """The compiled step counts them on the device, where an eager one would wait for each number. On fake CUDA."""
    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.zeros(3, device="cuda"))
        optimizer = torch.optim.RMSprop([weight], lr=0.1, capturable=capturable)
        step = compile_step(optimizer, ["lr"], {"backend": "eager"})
        optimizer.state[weight] = {"step": torch.ones((), device="cuda")}
        step.disable()
        assert optimizer.state[weight]["step"].device.type == ("cuda" if capturable else "cpu")
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert isinstance(optimizer.param_groups[0]["lr"], float)


ON_FAKE_CUDA = ("adadelta", "adagrad", "adam", "adamax", "adamw", "lamb", "nadam", "radam", "rmsprop",
                "rprop", "sgd")  # fmt: skip


@pytest.mark.parametrize("name", slow_but(("adamw",), ON_FAKE_CUDA))
def test_a_cuda_graph_can_hold_the_step(name: str) -> None:
    """On fake CUDA, where reading a number is an error: all inputs are on the device, and those that change keep their
    addresses. An eager step has its numbers on the host again.
    """
    inputs_on: list[set[str]] = []
    changing: list[set[int]] = []

    def forward_compiler(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        metadata = TracingContext.get().fw_metadata
        assert metadata is not None
        inputs_on.append({value.device.type for value in inputs})
        mutated = {n for n, info in enumerate(metadata.input_info) if info.mutates_data}
        changing.append(mutated - set(metadata.static_input_indices))
        return graph.forward

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return aot_module_simplified(graph, inputs, fw_compiler=forward_compiler)

    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = optimizer_over(net, name)
        step = compile_step(optimizer, {"lr"}, {"backend": backend})
        for n in range(3):
            for group_idx in range(2):
                write(optimizer, group_idx, "lr", 0.1 / (n + 1))
            for parameter in net.parameters():
                parameter.grad = torch.ones_like(parameter)
            step()
        assert inputs_on == [{"cuda"}]
        assert changing == [set()]
        for group in optimizer.param_groups:
            group["lr"] = 0.1  # reading it is an error, too
        step.disable()
        numbers = [v for s in optimizer.state.values() for k, v in s.items() if k in ("step", "mu_product")]
        assert all(number.device.type == "cpu" for number in numbers)


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [1, 3, 7])
def test_a_run_with_compiled_steps_resumes_exactly(
    stop_at: int, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("tracker=local", "compile=default", "compile.backend=aot_eager", "compile.optimizer=true",
             "+scheduler@schedules.weight_decay=linear", "+scheduler@schedules.betas.0=constant",
             "param_groups.no_decay=true", "precision=fp16", "precision.init_scale=1e9", "max_grad_norm=1",
             "duration=9", "log_every=1", "save_every=3", "model.hidden=[8]")  # fmt: skip
    whole, half = whole_and_resumed(train, monkeypatch, words, stop_at)
    assert rows_without_compile(whole) == rows_without_compile(half)
    assert_same_state(weights(whole), weights(half))
    assert summary(whole)["compile"]["recompiles"] == 0
    assert summary(whole)["compile"]["graph_breaks"] == 0


ADAM = ("tracker=local", "optimizer=adam", "optimizer.foreach=false", "model.hidden=[8]", "scheduler=linear",
        "duration=14", "log_every=1", "eval_every=14")  # fmt: skip
"""The foreach operations, the default on CUDA, take every number as a constant."""
NUMBERS = (*ADAM, *COMPILE, "compile.hyperparameters=numbers")


@pytest.mark.slow
@pytest.mark.parametrize(("specializes", "recompiles", "limits"), [(False, 1, 0), (True, 7, 1)])
def test_numbers_recompile_up_to_torch_s_limit(
    specializes: bool, recompiles: int, limits: int, train: Train
) -> None:
    """With `specialize_float` every operation needs a constant number, as some operations do in Inductor."""
    with torch._dynamo.config.patch(specialize_float=specializes):
        folder = train(*NUMBERS)
    report = json.loads((folder / "compile_report.json").read_text())
    assert len(report["recompiles"]) == summary(folder)["compile"]["recompiles"] == recompiles
    assert all("param_groups[0]['lr']" in r["guard"] for r in report["recompiles"] + report["limits"])
    assert len(report["limits"]) == limits
    log = (folder / "train.log").read_text()
    assert log.count("recompiled after update") == recompiles
    assert log.count("torch allows no more recompilations") == limits
    plain = train(*ADAM, name="plain")
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(folder)[name], value, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["adamw", "adam", "sgd", "lion", "muon"])
def test_only_the_first_job_of_a_sweep_compiles(option: str, workdir: Path) -> None:
    words = ("tracker=local", "compile=default", "compile.optimizer=true", "compile.cache_dir=code", "duration=6",
             "log_every=1", "eval_every=6", "model.hidden=[32]")  # fmt: skip
    sweep = (f"optimizer={option}", "optimizer.weight_decay=0.01,0.2", "optimizer.lr=1e-3,3e-3", "seed=0,1")
    assert cli.main(["train", "--multirun", "name=sweep", *words, *sweep]) == 0
    table = (workdir / "multirun" / "sweep" / "sweep.csv").read_text().splitlines()[1:]
    folders = [workdir / "multirun" / "sweep" / line.partition(",")[0] for line in table]
    misses = [json.loads((f / "compile_report.json").read_text())["cache"]["misses"] for f in folders]
    assert misses[0] > 0
    assert misses[1:] == [0] * 7


@pytest.mark.extension
@pytest.mark.slow
def test_the_experiment_compares_tensors_with_numbers(workdir: Path) -> None:
    words = ("experiment=compiled_optimizer", "compile.hyperparameters=tensors,numbers", "tracker=local")
    assert cli.main(["train", "--multirun", "name=sweep", *words]) == 0
    files = sorted((workdir / "multirun" / "sweep").glob("*/compile_report.json"))
    numbers, tensors = (json.loads(file.read_text()) for file in files)
    assert (tensors["graphs"], tensors["recompiles"]) == (2, [])  # of the task and of the step
    assert numbers["recompiles"]
    assert tensors["graph_breaks"] == numbers["graph_breaks"] == []


@pytest.mark.slow
@pytest.mark.parametrize("option", options_of("optimizer"))
def test_every_optimizer_trains_with_a_cosine(option: str, train: Train) -> None:
    """On digits with inductor. No step after the third recompiles."""
    if option == "sparse_adam":
        pytest.skip("needs a model of embeddings only; its step is never compiled")
    words = ("tracker=local", "compile=default", "compile.optimizer=true", f"optimizer={option}", "scheduler=cosine",
             "duration=12", "log_every=1", "eval_every=12", "model.hidden=[16]")  # fmt: skip
    num_graphs = [row["compile/graphs"] for row in rows(train(*words)) if "train/loss" in row]
    recompiled = [row["compile/recompiles"] for row in rows(Path("outputs/run")) if "train/loss" in row]
    assert len(set(num_graphs[NUM_WARMUP_CALLS:])) == len(set(recompiled[NUM_WARMUP_CALLS:])) == 1
    is_compiled = why_eager(optimizer_over(model(), option), {"lr"}) is None
    assert (num_graphs[-1] > 1) == (is_compiled or option == "kron")  # timm's Kron compiles parts of itself
