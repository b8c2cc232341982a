"""Folders of real JPEG files with timm's transforms."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from marks import needing, slow
from torch import Tensor

from hydrant.clock import Steps
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.data import Data, StreamSpec
from hydrant.errors import ConfigError, DataError
from hydrant.extensions.images import ImageAugment, image_folder
from hydrant.extensions.images.folder import class_folders

CPU = torch.device("cpu")
AUGMENT = ImageAugment(
    scale=(0.3, 1.0),
    ratio=(0.75, 4 / 3),
    hflip=0.5,
    color_jitter=0.4,
    auto_augment=None,
    re_prob=0.0,
    re_mode="const",
)


def build(root: Path, **changes: Any) -> Data:
    options: dict[str, Any] = {
        "input_shape": (3, 16, 20), "num_classes": 3, "train_dir": "train", "val_dir": "val", "test_dir": None,
        "extra_val": {}, "num_workers": 0, "on_error": "fail", "decoder": "pillow", "interpolation": "bicubic",
        "crop_pct": 0.875, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "augment": AUGMENT,
    }  # fmt: skip
    return image_folder(root=str(root), **{**options, **changes})


def update(data: Data, num_updates: int = 0, world_size: int = 1, micro_batch_size: int = 12) -> Tensor:
    batches: list[list[Tensor]] = []
    for rank in range(world_size):
        stream = data.train.stream(StreamSpec(3, Steps.constant(12), micro_batch_size, rank, world_size, CPU))
        batches.append([b.inputs for b in stream.micro_batches(num_updates)])
        stream.close()
    return torch.cat([inputs for step in zip(*batches, strict=True) for inputs in step])


@pytest.mark.parametrize(
    ("augment", "decoder"),
    [
        (AUGMENT, "pillow"),
        *slow(
            (
                replace(AUGMENT, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.5, re_mode="pixel"),
                "pillow_draft",
            )
        ),
        needing("simplejpeg", replace(AUGMENT, color_jitter=None), "simplejpeg"),
    ],
    ids=["color jitter", "RandAugment and erasing", "flip"],
)
def test_pixels_do_not_depend_on_workers_ranks_or_micro_batches(
    image_root: Path, augment: ImageAugment, decoder: str
) -> None:
    changes: dict[str, Any] = {"augment": augment, "decoder": decoder}
    whole = update(build(image_root, **changes), 1)
    assert whole.shape == (12, 3, 16, 20)
    assert whole.dtype == torch.float32
    for num_workers, world_size, micro_batch_size in ((0, 3, 2), (1, 1, 12), (2, 2, 3)):
        data = build(image_root, num_workers=num_workers, **changes)
        assert torch.equal(update(data, 1, world_size, micro_batch_size), whole)
    assert not torch.equal(update(build(image_root, **changes), 2), whole)


def test_evaluation_equals_timm_s_pipeline(image_root: Path) -> None:
    from timm.data.transforms_factory import create_transform
    from torchvision.datasets import ImageFolder

    normal = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    transform = create_transform(
        (3, 16, 20), is_training=False, interpolation="bicubic", crop_pct=0.875, **normal
    )
    expected = ImageFolder(image_root / "val", transform)
    inputs, targets = zip(
        *build(image_root).val.batches(StreamSpec(0, Steps.constant(1), 1, 0, 1, CPU), 4), strict=True
    )
    torch.testing.assert_close(torch.cat(inputs), torch.stack([image for image, _ in expected]))
    assert torch.cat(targets).tolist() == expected.targets


def test_bytes_and_floats_give_the_same_pixels(image_root: Path) -> None:
    """Erasing needs floats from the workers. With a probability near zero it changes nothing."""
    floats = build(image_root, augment=replace(AUGMENT, re_prob=1e-12))
    torch.testing.assert_close(update(floats), update(build(image_root)))


def test_sizes_and_shapes_are_those_of_the_folder(image_root: Path) -> None:
    data = build(image_root)
    assert (data.train.num_samples, data.val.num_samples) == (21, 9)
    assert (data.input_shape, data.num_classes) == ((3, 16, 20), 3)
    assert data.class_names == tuple(sorted(path.name for path in (image_root / "train").iterdir()))


def test_hidden_files_and_folders_are_left_out(image_root: Path) -> None:
    image = next((image_root / "train" / "bee").iterdir())
    for folder in (image_root / "train" / ".ipynb_checkpoints", image_root / "train" / "bee" / ".thumbnails"):
        folder.mkdir()
        shutil.copy(image, folder)
    shutil.copy(image, image.parent / f"._{image.name}")
    data = build(image_root)
    assert (data.train.num_samples, data.num_classes, len(data.class_names or ())) == (21, 3, 3)
    assert class_folders(str(image_root / "train")) == 3


def test_a_folder_to_which_links_lead_is_read_once(image_root: Path) -> None:
    bees = image_root / "train" / "bee"
    num_samples = build(image_root).train.num_samples
    (bees / "self").symlink_to(".")
    (bees / "up").symlink_to("..")
    (bees / "again").symlink_to(shutil.copytree(bees.parent / "ant", image_root / "elsewhere"))
    (bees / "once_more").symlink_to(image_root / "elsewhere")
    num_ants = len([*(bees.parent / "ant").iterdir()])
    assert build(image_root).train.num_samples == num_samples + num_ants
    (bees / "more").symlink_to("../cat")
    with pytest.raises(ConfigError, match=r"^data\.train_dir: .*Found no valid file for the classes cat"):
        build(image_root)


def test_further_folders_are_further_splits(image_root: Path) -> None:
    data = build(image_root, val_dir=None, test_dir="val", extra_val={"seen": "train"})
    assert data.test is not None
    assert (data.val.num_samples, data.test.num_samples, data.extra_val["seen"].num_samples) == (0, 9, 21)
    one, other = (
        next(iter(s.batches(StreamSpec(0, Steps.constant(1), 1, 0, 1, CPU), 4)))
        for s in (data.test, build(image_root).val)
    )
    assert torch.equal(one.inputs, other.inputs)
    rename_in_val(image_root)
    for changes in ({"test_dir": "val"}, {"extra_val": {"odd": "val"}}):
        refusal = r"^data: class \d of .*val is 'dog', and in training \['cat'\]"
        with pytest.raises(ConfigError, match=refusal):
            build(image_root, val_dir=None, **changes)


def empty_a_class(root: Path) -> None:
    for path in (root / "train" / "bee").iterdir():
        path.unlink()


def no_val(root: Path) -> None:
    shutil.rmtree(root / "val")


def rename_in_val(root: Path) -> None:
    (root / "val" / "cat").rename(root / "val" / "dog")


def no_classes(root: Path) -> None:
    shutil.rmtree(root / "train")
    (root / "train").mkdir()


def test_a_split_may_have_no_image_of_a_class(image_root: Path) -> None:
    number = build(image_root).val.num_samples
    images = sorted((image_root / "val" / "bee").iterdir())
    for image in images:
        image.unlink()
    data = build(image_root)
    assert data.val.num_samples == number - len(images) > 0
    targets = next(iter(data.val.batches(StreamSpec(0, Steps.constant(1), 1, 0, 1, CPU), 99))).targets
    assert 1 not in targets.tolist()
    (image_root / "val" / "bee").rmdir()
    with pytest.raises(ConfigError, match=r"class 1 of .*val is 'cat', and in training \['bee'\]"):
        build(image_root)


def nothing(root: Path) -> None:
    del root


MISTAKES: list[tuple[Callable[[Path], None], dict[str, Any], str]] = [
    (
        shutil.rmtree,
        {},
        "data.train_dir: no folder .*train; it must hold one folder of images for each class",
    ),
    (no_val, {}, "data.val_dir: no folder .*val; it must hold one folder of images for each class"),
    (no_classes, {}, "data.train_dir: .*Found no class folder"),
    (empty_a_class, {}, "data.train_dir: .*train: Found no valid file for the classes bee"),
    (nothing, {"num_classes": 5}, "data.num_classes: 5 is configured, but the data have 3"),
    (nothing, {"input_shape": (1, 16, 16)}, r"data.input_shape: \[1, 16, 16\] .* \[3, 16, 16\]"),
    (nothing, {"augment": replace(AUGMENT, auto_augment="magic")}, "data.augment: timm rejects .*'magic'"),
    (
        nothing,
        {"augment": replace(AUGMENT, color_jitter=(1.0,))},
        "data.augment: timm rejects .*color_jitter",
    ),
]


@pytest.mark.parametrize(("damage", "changes", "message"), MISTAKES)
def test_mistakes_name_the_key(
    image_root: Path, damage: Callable[[Path], None], changes: dict[str, Any], message: str
) -> None:
    damage(image_root)
    with pytest.raises(ConfigError, match=f"^{message}"):
        build(image_root, **changes)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("interpolation", "bicubik", "unknown value 'bicubik'; did you mean 'bicubic'"),
        ("decoder", "pilow", "unknown value 'pilow'; did you mean 'pillow'"),
        ("input_shape", "[16]", "needs a list of 3 whole numbers"),
        ("std", "[1,1,0]", "needs a list of numbers above 0"),
        ("augment.scale", "[0,1]", "needs a list of 2 numbers above 0"),
        ("augment.re_mode", "pixels", "unknown value 'pixels'"),
    ],
)
def test_values_outside_their_range_are_rejected(
    key: str, value: str, message: str, image_root: Path
) -> None:
    words = ["data=image_folder", f"data.root={image_root}", f"data.{key}={value}"]
    with pytest.raises(ConfigError, match=rf"^data\.{key}: {re.escape(message)}"):
        check(compose(words))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("content", [b"no image", b"", None], ids=["text", "empty", "truncated"])
def test_a_damaged_image_is_named(image_root: Path, num_workers: int, content: bytes | None) -> None:
    path = image_root / "val" / "bee" / "1.jpg"
    path.write_bytes(path.read_bytes()[:200] if content is None else content)
    data = build(image_root, num_workers=num_workers)
    with pytest.raises(DataError, match=f"^{re.escape(str(path))} cannot be read: ") as caught:
        list(data.val.batches(StreamSpec(0, Steps.constant(1), 1, 0, 1, CPU), 4))
    assert "Traceback" not in str(caught.value)
