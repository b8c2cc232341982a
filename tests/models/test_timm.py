"""timm builds the models of its own list. It reads no file and no repository that a config names."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import timm
from timm.models import load_checkpoint, load_state_dict
from training_runs import Train

from hydrant.errors import ConfigError
from hydrant.models import timm_model
from hydrant.training.checkpoint.weights import find_weights


class Program:
    """Is unpickled by a call of `Path("called").touch()`."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("called"),)


@pytest.fixture
def evil(workdir: Path) -> Path:
    """A folder with a model of timm whose weights are a program."""
    folder = workdir / "evil"
    folder.mkdir()
    (folder / "config.json").write_text('{"architecture": "test_resnet", "num_classes": 4}')
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"state_dict": Program()}))
    return folder


@pytest.mark.parametrize("name", ["checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"])
@pytest.mark.parametrize("value", ["evil/pytorch_model.bin", {"file": "evil/pytorch_model.bin"}])
def test_arguments_that_name_files_are_refused(name: str, value: Any, evil: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^model\.kwargs\.{name}: is not allowed"):
        timm_model(
            name="test_resnet", input_shape=[3, 8, 8], num_classes=4, pretrained=True, kwargs={name: value}
        )
    assert not Path("called").exists()


@pytest.mark.parametrize("name", ["local-dir:evil", "hf-hub:them/evil", "hf_hub:them/evil", "./evil", "evil"])
def test_folders_and_hubs_are_no_models(name: str, evil: Path) -> None:
    with pytest.raises(ConfigError, match=r"^init_from: unknown timm model"):
        find_weights(f"timm:{name}", "init_from").read("init_from")
    with pytest.raises(ConfigError, match=r"^model\.name: unknown timm model"):
        timm_model(name=name, input_shape=[3, 8, 8], num_classes=4, pretrained=True, kwargs={})
    assert not Path("called").exists()


def test_a_run_is_refused_that_begins_with_a_stranger_s_model(evil: Path, train: Train) -> None:
    train("tracker=local", "init_from=timm:local-dir:evil", status=2)
    assert not Path("called").exists()


def test_the_installed_timm_does_not_unpickle_weights(evil: Path) -> None:
    """The lowest version that pyproject.toml allows does not either; `.ci/run lowest` tests it."""
    file = str(evil / "pytorch_model.bin")
    for load in (load_state_dict, lambda file: load_checkpoint(timm.create_model("test_resnet"), file)):
        with pytest.raises(Exception):  # noqa: B017, PT011  # which one depends on the versions of timm and torch
            load(file)
    with pytest.raises(Exception):  # noqa: B017, PT011
        timm.create_model(f"local-dir:{evil}", pretrained=True)
    assert not Path("called").exists()
