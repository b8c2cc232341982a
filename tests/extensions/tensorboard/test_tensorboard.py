"""TensorBoard reads each logged row once, also after a resume. A failing disk does not stop training."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hydrant.config.groups import option_path
from hydrant.extensions.tensorboard import TensorBoardTracker
from hydrant.trackers import RunIdentity, Trackers

Make = Callable[..., TensorBoardTracker]


def read(identity: RunIdentity) -> EventAccumulator:
    events = EventAccumulator(str(identity.folder / "tensorboard"))
    events.Reload()
    return events


def loss(num_updates: int) -> dict[str, float]:
    return {
        "num_updates": num_updates,
        "epoch": 0.5,
        "time": 1e9 + num_updates,
        "train/loss": 1 / (1 + num_updates),
    }


def of_a_run(identity: RunIdentity) -> Trackers:
    """Return TensorBoard as a run has it: `Trackers` keeps its failures away."""
    node = yaml.safe_load(option_path("tracker", "tensorboard").read_text(encoding="utf-8"))
    return Trackers({"tracker": node, "trackers": {}}, identity, 0)


def test_logged_rows_are_read_back(identity: RunIdentity, make_tensorboard: Make) -> None:
    tracker = make_tensorboard(identity)
    for num_updates in range(5):
        tracker.log(loss(num_updates))
    tracker.log({**loss(5), "train/loss": math.nan, "val/accuracy": 0.75})
    tracker.finish(0, {})

    events = read(identity)
    assert set(events.Tags()["scalars"]) == {"epoch", "train/loss", "val/accuracy"}
    *finite, last = events.Scalars("train/loss")
    assert [(e.step, e.wall_time) for e in finite] == [(n, 1e9 + n) for n in range(5)]
    assert [e.value for e in finite] == [np.float32(1 / (1 + n)) for n in range(5)]
    assert math.isnan(last.value)
    assert [(e.step, e.value) for e in events.Scalars("val/accuracy")] == [(5, 0.75)]
    assert tracker.describe() == {}


def test_the_config_is_a_table_and_picture_is_an_image(identity: RunIdentity, make_tensorboard: Make) -> None:
    picture = identity.folder / "schedule.png"
    Image.new("RGBA", (6, 4), (255, 0, 0, 255)).save(picture)
    tracker = make_tensorboard(identity, num_updates=7)
    tracker.image("schedule", picture)
    tracker.finish(0, {})

    events = read(identity)
    (text,) = events.Tensors("config/text_summary")
    assert b"| `optimizer.lr` | `0.001` |" in text.tensor_proto.string_val[0]
    (image,) = events.Images("schedule")
    assert (image.step, image.width, image.height) == (7, 6, 4)


def test_texts_and_tables_of_hooks_are_texts(identity: RunIdentity, make_tensorboard: Make) -> None:
    tracker = make_tensorboard(identity, num_updates=7)
    tracker.text("poem", "# one\n*two*")
    tracker.table("notes", ["name", "value"], [["a", 1], ["b", 2.5]])
    tracker.finish(0, {})
    (poem,), (notes,) = (read(identity).Tensors(f"{name}/text_summary") for name in ("poem", "notes"))
    assert (poem.step, notes.step) == (7, 7)
    assert poem.tensor_proto.string_val[0] == b"    # one\n    *two*\n"  # shown as it is, not as Markdown
    assert notes.tensor_proto.string_val[0] == b"| name | value |\n| --- | --- |\n| a | 1 |\n| b | 2.5 |\n"


@pytest.mark.parametrize("num_updates", [0, 5])
def test_a_resumed_run_shows_each_row_once(
    num_updates: int, identity: RunIdentity, make_tensorboard: Make
) -> None:
    first = make_tensorboard(identity)
    for count in range(10):
        first.log({**loss(count), "train/loss": -1.0})
    first.finish(1, {})
    [events] = (identity.folder / "tensorboard").iterdir()
    events.rename(events.with_name("events.out.tfevents.1"))  # sorted by the second in their names
    second = make_tensorboard(identity, num_updates=num_updates)
    repeated = range(num_updates + 1 if num_updates else 0, 10)  # the row of the checkpoint's update stays
    for count in repeated:
        second.log(loss(count))
    second.finish(0, {})

    scalars = read(identity).Scalars("train/loss")
    assert [e.step for e in scalars] == list(range(10))
    assert [e.value for e in scalars] == [
        np.float32(1 / (1 + n)) if n in repeated else -1.0 for n in range(10)
    ]


def test_a_failure_causes_one_warning(
    identity: RunIdentity, logged_warnings: Callable[[], list[str]]
) -> None:
    tracker = of_a_run(identity)
    tracker.image("schedule", identity.folder / "absent.png")
    tracker.log(loss(0))
    tracker.finish(0, {})
    (warning,) = logged_warnings()
    assert warning.startswith("tracker: FileNotFoundError")
    assert "training continues" in warning


def test_a_folder_that_cannot_be_created_causes_one_warning(
    identity: RunIdentity, logged_warnings: Callable[[], list[str]]
) -> None:
    Path(identity.folder / "tensorboard").write_text("in the way")
    tracker = of_a_run(identity)
    tracker.log(loss(0))
    tracker.finish(0, {})
    assert len(logged_warnings()) == 1
