"""The header of a run names what it trains, and by which schedules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import open_dict
from timm.optim import create_optimizer_v2

from hydrant.config.check import check
from hydrant.config.compose import compose_run
from hydrant.config.flat import group_choices
from hydrant.optimizers.kinds import arguments_of
from hydrant.runs.job import Job
from hydrant.runs.summary_lines import start_lines
from hydrant.training.prepare.build import prepare


def header(*words: str) -> dict[str, str]:
    composed = compose_run(["duration=20", "tracker=local", *words])
    choices = group_choices(composed.hydra.runtime.choices)
    with open_dict(composed):
        del composed["hydra"]
    config = check(composed)
    return start_lines(Job(config, Path("run"), choices, {}, [], None), prepare(config, is_preview=True))


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


def test_an_option_that_is_a_library_names_what_it_builds() -> None:
    lines = header("model=timm", "model.name=vit_tiny_patch16_224", "+model.kwargs={img_size: 32, patch_size: 16}",
                   "data=synthetic", "data.input_shape=[3,32,32]", "optimizer=lion")  # fmt: skip
    assert lines["model"].startswith("timm vit_tiny_patch16_224: ")
    assert lines["optimizer"].startswith("lion: lr 0.0003, ")


@pytest.mark.parametrize("name", ["lion", "lookahead_lion", "nadamw", "sgdw"])
def test_the_notes_of_an_optimizer_are_no_settings(name: str) -> None:
    optimizer = create_optimizer_v2([torch.nn.Parameter(torch.ones(2, 2))], opt=name, lr=0.1)
    [group] = optimizer.param_groups
    shown = [field for field in group if field in arguments_of(optimizer)]
    assert {"lr", "weight_decay"} <= {*shown}
    assert "max_lr_snapshot" in group
    assert "max_lr_snapshot" not in shown
