"""Ids that other types than integers round, and what checks that they arrive in every precision."""

from typing import Any

import torch
import yaml
from sources import spec

from hydrant.batch import tensors_of
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.groups import option_path
from hydrant.config.instantiate import instantiate
from hydrant.data import Data

IDS = torch.tensor([[0, 2**20], [257, 2**20 - 1], [2**16 + 1, 12345], [2**8 + 1, 999_999]])
"""Most of these change if they are rounded to bfloat16 or float16, or to float32 and back in between."""


class Items:
    """The ids as a map-style data set."""

    def __len__(self) -> int:
        return len(IDS)

    def __getitem__(self, index: int) -> tuple[dict[str, Any], int]:
        return {"ids": IDS[index]}, index


def defaults(option: str) -> dict[str, Any]:
    plain = yaml.safe_load(option_path("data", option).read_text())
    del plain["_target_"]
    shapes = {"input_shape": None, "num_classes": None}
    return plain | shapes | ({"num_workers": 0} if "num_workers" in plain else {})


def check_exact(data: Data, modulus: int = 2**63 - 1) -> None:
    """Check that data validate on the ids, modulo a number, in every precision."""
    batch = next(iter(data.val.batches(spec(), len(IDS))))
    for option in ("fp32", "bf16", "bf16_true", "fp16"):
        precision = instantiate(check(compose([f"precision={option}"])), "precision", torch.device("cpu"))
        cast = precision.cast(batch)
        [ids] = [t for t in tensors_of(cast.inputs) if not t.is_floating_point()]
        assert torch.equal(ids, IDS % modulus)
