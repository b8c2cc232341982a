"""The header of a run names what it trains, and by which schedules."""

from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import open_dict

from hydrant.config.check import check
from hydrant.config.compose import compose_run
from hydrant.config.flat import group_choices
from hydrant.extensions.overview.lines import start_lines
from hydrant.runs.job import Job
from hydrant.training.prepare.build import prepare
from hydrant.training.trainer import Plan


def planned(*words: str) -> tuple[Job, Plan]:
    composed = compose_run(["duration=20", "tracker=local", *words])
    choices = group_choices(composed.hydra.runtime.choices)
    with open_dict(composed):
        del composed["hydra"]
    config = check(composed)
    return Job(config, Path("run"), choices, {}, [], None), prepare(config, is_preview=True)


def header(*words: str) -> dict[str, str]:
    return start_lines(*planned(*words))


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        (["scheduler=constant", "optimizer.lr=0.003"], "constant: lr 0.003"),
        (["experiment=two_models", "scheduler=constant", "+scheduler@optimizers.second.scheduler=linear",
          "optimizers.second.scheduler.end_ratio=0.5"],
         "first constant: lr 0.01; second linear: lr 0.003 -> 0.00158"),
        (["scheduler=constant", "optimizer.lr=0.002", "+param_groups.patterns.head={match: classifier, lr_scale: 0.5}"],
         "constant: lr 0.002, the largest of 2 groups"),
        (["scheduler=constant", "optimizer.lr=0.002", "+scheduler@schedules.weight_decay=constant"],
         "constant: lr 0.002, also weight_decay"),
    ],
)  # fmt: skip
def test_the_schedule_of_each_optimizer_is_shown(words: list[str], schedule: str) -> None:
    assert header(*words)["schedule"] == schedule


def test_parts_in_evaluation_mode_and_written_buffers_are_named() -> None:
    job, plan = planned("model=convnet", "global_batch_size=32", "micro_batch_size=8")
    assert not plan.written_buffers  # batch norm statistics are combined
    plan.task.model.get_submodule("stages").eval()
    spec = replace(plan.spec, world_size=2)
    lines = start_lines(job, plan)
    assert lines["model"].endswith("parameters; in evaluation mode: stages")
    assert "buffers" not in lines
    written = replace(plan, spec=spec, written_buffers=["model.state"])
    assert start_lines(job, written)["buffers"] == (
        "training writes model.state: each micro-batch gets that of the one before; after an update, all ranks get "
        "that of rank 0"
    )


def test_an_option_that_is_a_library_names_what_it_builds() -> None:
    lines = header("model=timm", "model.name=vit_tiny_patch16_224", "+model.kwargs={img_size: 32, patch_size: 16}",
                   "data=synthetic", "data.input_shape=[3,32,32]", "optimizer=lion")  # fmt: skip
    assert lines["model"].startswith("timm vit_tiny_patch16_224: ")
    assert lines["optimizer"].startswith("lion: lr 0.0003, ")


@pytest.mark.parametrize(("interval", "is_told"), [("17", True), ("20ep", False), ("null", False)])
def test_evaluations_that_are_not_shown_are_told(interval: str, is_told: bool) -> None:
    assert ("evaluations" in header("duration=400ep", f"eval_every={interval}")["updates"]) == is_told
