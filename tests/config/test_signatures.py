"""A config gives targets the arguments that they take, of the right type, by name or by position."""

from typing import Any

import pytest
import torch

from hydrant.config.instantiate import check_signatures, instantiate_node
from hydrant.errors import ConfigError


def test_positional_arguments_are_checked_like_named_ones() -> None:
    for arguments in ({"_args_": [3, "wide"]}, {"in_features": 3, "out_features": "wide"}):
        with pytest.raises(ConfigError, match="needs a whole number, not 'wide'"):
            check_signatures({"part": {"_target_": "torch.nn.Linear", **arguments}})
    layers = [{"_target_": "torch.nn.Linear", "_args_": [3, 4]}, {"_target_": "torch.nn.ReLU"}]
    check_signatures({"part": {"_target_": "torch.nn.Sequential", "_args_": layers}})


@pytest.mark.parametrize("target", ["torch.nn.Linear", "torchmetrics.MeanMetric"])
def test_a_number_is_no_argument(target: str) -> None:
    """The second target takes any keyword."""
    node = {"_target_": target, "_partial_": True, 1: "x"}
    with pytest.raises(ConfigError, match=r"part\.1: .* has no argument 1"):
        check_signatures({"part": node})


def test_a_whole_number_becomes_a_float_in_a_tuple_of_floats() -> None:
    """torch refuses betas of (0, 0.99), of which GANs make use."""
    node = {"_target_": "torch.optim.Adam", "_partial_": True, "lr": 1, "betas": [0, 0.99], "weight_decay": 0}
    stepped = {"_target_": "torch.optim.lr_scheduler.ExponentialLR", "_partial_": True, "gamma": 1}
    config: dict[str, Any] = {"optimizer": node, "scheduler": stepped}
    check_signatures(config)
    assert repr(node["betas"]) == "[0.0, 0.99]"
    assert repr((node["lr"], node["weight_decay"])) == "(1, 0)"  # as the user wrote them
    instantiate_node(node)([torch.nn.Parameter(torch.zeros(2))])
    assert repr(stepped["gamma"]) == "1"  # may be a duration
