"""The table of docs/guides/other-loops.md: closures and second derivatives under each key, tried one by one."""

import re
from pathlib import Path

import derivatives
import pytest
import torch
from derivatives import NUM_UPDATES, POINTS, plain_loop, targets
from marks import slow
from ranks import run_on_ranks
from repository import ROOT
from run_folders import rows
from training_runs import Train, interrupt_at

import hydrant
from hydrant import cli
from hydrant.training.prepare.build import prepare

BASE = ("tracker=local", "data=tensors", "data.train=points.pt", "data.val=points.pt", "data.input_shape=[2]",
        "data.num_classes=null", "model._target_=derivatives.make_model",
        "~model.hidden", "~model.dropout", "scheduler=constant", "optimizer=sgd", f"optimizer.lr={derivatives.LR}",
        "global_batch_size=all", f"duration={NUM_UPDATES}", "log_every=1", "eval_every=2",
        "save_every=2")  # fmt: skip
PLAIN = ("task=regression", "optimizer.momentum=0")
SLOPE = ("optimizer.momentum=0", "task=supervised", "~task.loss", "~task.loss_of_batch")
SLOPE_IN_TASK, HOOK = "torch.autograd.grad in the task", "a Hessian-vector product in a hook"
PROGRAMS = {
    "optimizer=lbfgs": ("lbfgs", ("task=regression", "optimizer=lbfgs", "optimizer.max_iter=3",
                                  "optimizer.line_search_fn=null")),
    "optimizer=sam": ("sam", ("task=regression", "optimizer=sam", "optimizer.base.momentum=0")),
    HOOK: (
        "HessianProduct", (*PLAIN, "+hooks.product._target_=derivatives.HessianProduct")),
    SLOPE_IN_TASK: ("Slope", (*SLOPE, "task._target_=derivatives.Slope")),
    "torch.func.grad in the task": ("FunctionalSlope", (*SLOPE, "task._target_=derivatives.FunctionalSlope")),
}  # fmt: skip
KEYS = {
    "micro_batch_size": ("micro_batch_size=8",),
    "precision=bf16": ("precision=bf16",),
    "precision=fp16": ("precision=fp16",),
    "max_grad_norm": ("max_grad_norm=0.01",),
    "averaging=ema": ("averaging=ema", "averaging.decay=0.5", "averaging.warmup=false"),
    "skip_non_finite": ("skip_non_finite=true",),
    "update_order": (
        "+optimizers.first.parts=['0']",
        "+optimizers.last.parts=['2']",
        "update_order=[[first,last]]",
    ),
    "compile": ("compile=aot_eager", "compile.optimizer=true"),
    "parallel=ddp": ("parallel=ddp", "parallel.num_processes=2"),
    "parallel=fsdp": ("parallel=fsdp", "parallel.num_processes=2"),
    "hydra/launcher=stacked": ("hydra/launcher=stacked", "seed=0,1", "--multirun"),
    "a resume": (),
}
KINDS = {"precision=bf16": "bf16", "precision=fp16": "fp16", "max_grad_norm": "clip", "update_order": "turns"}
PAGE = (ROOT / "docs" / "guides" / "other-loops.md").read_text()
TABLE = PAGE.partition("| program | refused |\n| --- | --- |\n")[2]
REFUSED = {
    p.replace("`", ""): re.findall("`(.*?)`", keys.partition(", by")[0])
    for p, keys in re.findall(r"\| (.*?) \|(.*)\|\n", TABLE)
}
CHEAP = [("optimizer=lbfgs", "max_grad_norm"), ("optimizer=sam", "micro_batch_size"), (HOOK, "update_order"),
         (SLOPE_IN_TASK, "compile"), (SLOPE_IN_TASK, "averaging=ema")]  # fmt: skip


@pytest.fixture(autouse=True)
def points(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRANT_ALLOW_TARGETS", "derivatives")
    torch.save({"inputs": POINTS, "targets": targets(POINTS)}, "points.pt")
    (workdir / "derivatives.py").write_text(Path(f"{derivatives.__file__}").read_text())


def test_the_page_names_what_is_tried() -> None:
    assert REFUSED.keys() == PROGRAMS.keys()
    assert set().union(*REFUSED.values()) <= KEYS.keys()
    assert all(f"`{key}`" in PAGE or key == "a resume" for key in KEYS)


@pytest.mark.parametrize(
    ("program", "key"), [*CHEAP, *slow(*((p, k) for p in PROGRAMS for k in KEYS if (p, k) not in CHEAP))]
)
@pytest.mark.usefixtures("without_gpu")
def test_a_program_is_its_plain_loop_or_refused_before_it_starts(
    program: str, key: str, train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, of_program = PROGRAMS[program]
    words, folder = (*BASE, *of_program, *KEYS[key]), workdir / "outputs" / "run"
    is_refused = key in REFUSED[program]
    if key.startswith("parallel"):
        run_on_ranks(2, workdir, [("train", "name=run", *words)], {"run": 2 * is_refused})
    elif key == "hydra/launcher=stacked":
        assert cli.main(["train", "hydra.sweep.dir=outputs", "hydra.sweep.subdir=${seed}", *words]) == 0
        folder = folder.with_name("0")
    else:
        if key == "a resume":
            with monkeypatch.context() as patch:
                interrupt_at(patch, 3)
                train(*words, status=130)
        train(*words, status=2 * is_refused)
    assert (folder / "summary.json").exists() != is_refused
    if is_refused:
        return
    model = prepare(hydrant.compose([*BASE, *PLAIN])).task.model
    trained, average, sums = plain_loop(model, name, KINDS.get(key, ""))
    tolerance = 1e-4 if key.startswith("precision") or name == "lbfgs" else 1e-6
    run = hydrant.load_run(folder)
    for part, values in {"last": trained, **({"ema": average} if key == "averaging=ema" else {})}.items():
        for weight, value in zip(run.model(part).parameters(), values, strict=True):
            torch.testing.assert_close(weight.detach(), value, rtol=0, atol=tolerance)
    logged = [row["hessian/sum"] for row in rows(folder) if "hessian/sum" in row]
    if key not in ("micro_batch_size", "parallel=ddp"):  # where the first batch is a part
        assert logged == pytest.approx(sums, rel=1e-2 if key.startswith("precision") else 1e-4)
