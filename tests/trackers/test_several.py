"""Several trackers get the same, and one that fails costs neither the others nor the run."""

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from training_runs import Train, UserModule

from hydrant.config.compose import compose
from hydrant.errors import ConfigError
from hydrant.trackers import RunIdentity, Trackers

CALLS: dict[str, Callable[[Trackers], Any]] = {
    "log": lambda trackers: trackers.log({"num_updates": 1, "train/loss": 0.5}),
    "image": lambda trackers: trackers.image("schedule", Path("schedule.png")),
    "text": lambda trackers: trackers.text("samples/first", "to be"),
    "table": lambda trackers: trackers.table("layers", ["name", "size"], [["fc", 10]]),
    "histograms": lambda trackers: trackers.histograms(1, {}),
    "file": lambda trackers: trackers.file(Path("trace.json")),
    "checkpoint": lambda trackers: trackers.checkpoint(Path("update_00000001")),
    "recorded": lambda trackers: trackers.recorded(),
    "finish": lambda trackers: trackers.finish(0, {}),
}
RECORDING = """
from hydrant.trackers import NullTracker

seen = []

class Recording:
    def __init__(self, identity, num_updates, name="", fails="", error=RuntimeError):
        self.name, self.fails, self.error = name, fails, error
        self.call("init", identity.name, num_updates)

    def call(self, method, *arguments):
        seen.append((self.name, method, *arguments))
        if method == self.fails:
            raise self.error("not today")
        return {"seen_by": self.name, self.name: 1}

    def __getattr__(self, method):
        return lambda *arguments: self.call(method, *arguments)
"""
Seen = list[tuple[Any, ...]]


@pytest.fixture
def seen(user_module: UserModule) -> Seen:
    """What recording trackers have received."""
    user_module("recording", RECORDING)
    sys.modules.pop("recording", None)
    return importlib.import_module("recording").seen


def config(**changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the trackers first, second and third; `changes` are their arguments."""
    node = {"_target_": "recording.Recording", "_partial_": True}
    first, *others = (
        {**node, "name": name, **changes.get(name, {})} for name in ("first", "second", "third")
    )
    return {"tracker": first, "trackers": dict(zip(("second", "third"), others, strict=True))}


def test_each_tracker_gets_each_call_in_order(identity: RunIdentity, seen: Seen) -> None:
    trackers = Trackers(config(), identity, 7)
    assert seen == [(name, "init", "adamw-0", 7) for name in ("first", "second", "third")]
    for method, call in CALLS.items():
        seen.clear()
        call(trackers)
        _, _, *arguments = seen[0]
        assert seen == [(name, method, *arguments) for name in ("first", "second", "third")]


def test_the_first_tracker_decides_what_several_describe(identity: RunIdentity, seen: Seen) -> None:
    described = {"seen_by": "first", "first": 1, "second": 1, "third": 1}
    assert Trackers(config(), identity, 0).recorded() == described


@pytest.mark.parametrize("method", ["init", *CALLS])
def test_a_tracker_that_fails_gets_nothing_more(
    method: str, identity: RunIdentity, seen: Seen, logged_warnings: Callable[[], list[str]]
) -> None:
    trackers = Trackers(config(second={"fails": method}), identity, 0)
    for call in [*CALLS.values(), *CALLS.values()]:
        call(trackers)
    called = [name for name, *_ in seen]
    assert called.count("first") == called.count("third") == 1 + 2 * len(CALLS)
    methods = ["init", *CALLS]
    assert [m for name, m, *_ in seen if name == "second"] == methods[: methods.index(method) + 1]
    (warning,) = logged_warnings()
    assert warning.startswith(
        "trackers.second: RuntimeError: not today; it gets nothing more, training continues"
    )


@pytest.mark.extension
def test_settings_that_a_tracker_rejects_end_the_others(identity: RunIdentity, seen: Seen) -> None:
    wandb = OmegaConf.to_container(compose(["tracker=wandb"]).tracker)
    wrong = config(third={**wandb, "project": "a/b"})
    with pytest.raises(ConfigError, match=r"^trackers\.third\.project: W&B does not accept .a/b."):
        Trackers(wrong, identity, 0)
    assert [call for call in seen if call[1] == "finish"] == [
        (n, "finish", 1, {}) for n in ("first", "second")
    ]


@pytest.mark.extension
def test_a_run_has_the_files_of_all_its_trackers(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = train("tracker=[wandb,tensorboard]", "duration=2", "eval_every=null", "save_every=null", "log_every=1",
                   "tags=[baseline]")  # fmt: skip
    assert list(folder.glob("wandb/offline-run-*/*.wandb"))
    assert list(folder.glob("tensorboard/events.out.*"))
