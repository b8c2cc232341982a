"""A checked config has the values of the composed one, resolved and in plain types."""

import pytest
import yaml
from omegaconf import OmegaConf

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError


def test_check_only_resolves() -> None:
    config = compose(["max_grad_norm=1", "duration=2ep", "eval_every=null"])
    resolved = check(config)
    assert (resolved["max_grad_norm"], resolved["duration"], resolved["eval_every"]) == (1, "2ep", None)
    best = {"best": {"metric": "val/accuracy", "mode": "max"}}
    assert resolved == {**OmegaConf.to_container(config, resolve=True), **best}
    assert check(OmegaConf.create(resolved)) == resolved
    assert check(OmegaConf.create(yaml.safe_load(yaml.safe_dump(resolved)))) == resolved


def test_a_list_that_an_own_model_reads_but_nobody_gave_is_named() -> None:
    config = compose(["+model.channels=${data.input_shape[0]}", "data.input_shape=null"])
    message = r"^model\.channels: .*: data\.input_shape holds no list; give data\."
    with pytest.raises(ConfigError, match=message):
        check(config)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [("seed", 2**64, "a number has 65 bits"), ("notes", "a\0b", "a text has a zero byte")],
)
def test_what_no_record_can_hold_is_refused(key: str, value: int | str, reason: str) -> None:
    """Such a run could neither continue nor be evaluated, because its config.yaml cannot be read."""
    config = compose([])
    config[key] = value
    with pytest.raises(ConfigError, match=f"^{key}: {reason}, which the record of a run cannot hold"):
        check(config)


def test_the_largest_seed_is_accepted() -> None:
    assert check(compose([f"seed={2**64 - 1}"]))["seed"] == 2**64 - 1
