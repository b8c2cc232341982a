"""A config gives targets the arguments that they take, of the right type, by name or by position."""

from __future__ import annotations

import pytest

from hydrant.config.signatures import check_signatures
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
