"""Ejected files read the samples of every data set as their configs do."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_files import STEMS, Published, image_root, published, write_idx_set
from eject_files import save_tensors, write_arrays, write_files, write_houses
from ejected import TINY, check_equal, rows_of, run_program, unchanged_process
from marks import slow
from training_runs import Train

from hydrant import cli

__all__ = ["image_root", "published", "unchanged_process"]
pytestmark = pytest.mark.usefixtures("unchanged_process")
IMAGES = ("data=image_folder", "data.input_shape=[3,16,16]", "model=convnet", "global_batch_size=6")


def words_of(published: Published) -> str:
    """Return the words of a run on a small published data set."""
    return f"data={published.name} data.root=data data.download=false global_batch_size=6 eval_batch_size=4"


@pytest.mark.parametrize(
    "words",
    ["", "data.val_ratio=0.5 limit_train_samples=null precision=bf16", *slow("data.augment.max_shift=0")],
)
def test_published_images(words: str, published: Published, workdir: Path) -> None:
    check_equal(f"{words_of(published)} {words}", workdir)


def test_letters_of_emnist_in_compressed_files(workdir: Path) -> None:
    write_idx_set(
        workdir / "data", tuple(f"emnist-letters-{s}".replace("t10k", "test") for s in STEMS), first=1
    )
    words = "data=emnist data.variant=emnist_letters data.num_classes=26 data.root=data data.download=false"
    check_equal(f"{words} global_batch_size=6 eval_batch_size=4", workdir)


def test_the_augmentation_of_airbench(published: Published, workdir: Path) -> None:
    augment = (
        "data.augment._target_=hydrant.data.AlternatingFlip data.augment.max_shift=2 data.augment.flip=true"
    )
    check_equal(f"{words_of(published)} {augment} duration=9", workdir)


@pytest.mark.parametrize("ending", [*slow("pt"), "npz"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("points", "data.input_shape=[4]"),
        *slow(("points", "data.input_shape=[4] data.mean=[0.5] data.std=[2]")),
        ("bytes", "data.input_shape=[3,8,8] data.mean=[0.5,0.4,0.3] data.std=[0.2,0.3,0.4] mixing=mixup"),
        *slow(
            ("images", "data.input_shape=[3,8,8] data.mean=[0.5,0.4,0.3] data.std=[0.2,0.3,0.4] limit_val_samples=null")
        ),
        ("signals", "data.input_shape=[2,6] data.mean=[0.5,0.4] data.std=[0.2,0.3] limit_train_samples=null"),
    ],
)  # fmt: skip
def test_tensors_in_files(kind: str, words: str, ending: str, workdir: Path) -> None:
    for split, count in {"train": 40, "val": 30}.items():
        save_tensors(Path(f"{split}.{ending}"), kind, count)
    files = f"data=tensors data.train=train.{ending} data.val=val.{ending} data.num_classes=5"
    check_equal(f"{files} {words} limit_train_samples=38 limit_val_samples=20", workdir)


@pytest.mark.parametrize("words", ["", "precision=fp16 micro_batch_size=8 limit_train_samples=null"])
def test_synthetic_images(words: str, workdir: Path) -> None:
    sizes = "data.input_shape=[3,6,6] data.num_classes=5 data.num_samples=150 data.num_val_samples=60"
    check_equal(f"data=synthetic {sizes} {words}", workdir)


@pytest.mark.parametrize("words", ["", *slow("data.val_ratio=0 data.shuffled=true")])
def test_signals(words: str, workdir: Path) -> None:
    check_equal(f"data=mnist1d data.num_samples=500 {words}", workdir)


@pytest.mark.parametrize(
    "words",
    [
        "data.target=price task=regression",
        *slow(
            "data.target=price task=regression task.loss=huber task.delta=0.5 data.val=val.csv precision=bf16",
            "data.target=[price,area] task=regression task.loss=mae data.test_ratio=0.1 data.standardize=false",
        ),
        "data.target=price task=regression data.train=gaps.csv data.missing=mean data.standardize_targets=false "
        "data.features=[area,city,rooms]",
        *slow(
            "data.target=price task=regression micro_batch_size=8 data.categorical=[rooms,kind] ~task.metrics.r2"
        ),
        "data.target=size data.test_ratio=0.1 data.features=[city]",
        *slow("data.target=kind data.features=[area,rooms] task.label_smoothing=0.1"),
        "data.target=kind data.classes=true data.categorical=[rooms] averaging=ema",
    ],
)
def test_tables(words: str, workdir: Path) -> None:
    write_houses(Path("houses.csv"), 90)
    write_houses(Path("val.csv"), 30)
    write_houses(Path("gaps.csv"), 80, gaps=True)
    first = "" if "data.train" in words else "data.train=houses.csv"
    check_equal(f"data=csv {first} {words} limit_train_samples=60 limit_val_samples=15", workdir)


@pytest.mark.parametrize(
    "words",
    [
        *slow("data.num_workers=1"),
        "data.num_workers=0 micro_batch_size=8 precision=fp16 precision.init_scale=1e6",
        *slow("data.num_workers=0 mixing=mixup optimizer=sam"),  # evaluates each batch twice
    ],
)
def test_arrays_in_files(words: str, workdir: Path) -> None:
    for split, count in {"train": 60, "val": 30}.items():
        write_arrays(Path(split), count)
    shapes = "data.input_shape=[4] data.num_classes=3 limit_train_samples=50 limit_val_samples=25"
    check_equal(f"data=memmap data.train=train data.val=val {shapes} {words}", workdir)


@pytest.mark.parametrize(
    "words",
    [
        *slow("data.num_workers=2"),
        "data.num_workers=0 data.augment.auto_augment=rand-m9-mstd0.5 micro_batch_size=2 precision=bf16",
        *slow(
            "data.num_workers=0 data.augment.color_jitter=null data.interpolation=bilinear limit_train_samples=9 "
            "mixing=mixup"
        ),
    ],
)
def test_folders_of_images(words: str, image_root: Path, workdir: Path) -> None:
    sizes = "data.input_shape=[3,16,16] global_batch_size=6 eval_batch_size=4 limit_val_samples=7"
    check_equal(f"data=image_folder data.root=images {sizes} limit_train_samples=null {words}", workdir)


@pytest.mark.parametrize("name", ["bee/._1.jpg", "bee/.old/1.JPG", ".empty/.gitkeep"])
def test_a_hidden_image_or_class_is_refused(
    name: str, image_root: Path, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run leaves it out, but torchvision's folder would read it."""
    (file := image_root / "train" / name).parent.mkdir(exist_ok=True)
    file.touch()
    assert cli.main(["eject", *IMAGES, f"data.root={image_root}", "--out", "run.py"]) == 2
    hidden = name.removesuffix("/.gitkeep")
    assert f"{hidden} is hidden, which a run leaves out" in capsys.readouterr().err
    assert not Path("run.py").exists()


def test_hidden_files_that_are_no_images_are_no_matter(image_root: Path, workdir: Path) -> None:
    for name in (".DS_Store", "bee/.DS_Store", "bee/.gitkeep", "bee/.cache/index"):
        (file := image_root / "train" / name).parent.mkdir(exist_ok=True)
        file.touch()
    assert cli.main(["eject", *IMAGES, f"data.root={image_root}", "--out", "run.py"]) == 0


def test_the_run_of_a_folder_with_a_relative_path_to_its_data(train: Train, workdir: Path) -> None:
    write_houses(Path("houses.csv"), 90)
    table = ("data=csv", "data.train=houses.csv", "data.target=price", "task=regression")
    folder = train(*TINY[:-1], *table, "limit_train_samples=60", "limit_val_samples=15", name="long")
    assert cli.main(["eject", "outputs/long", "--out", "run.py"]) == 0
    run_program(Path("run.py").read_text())
    assert rows_of(Path("outputs/long_ejected")) == rows_of(folder)


@pytest.mark.parametrize(
    "words",
    [
        "data=digits data.test_ratio=0.1 averaging=ema",
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                "data=digits data.test_ratio=0.3 eval_batch_size=400 limit_test_samples=70 data.augment.max_shift=1 "
                "optimizer=schedule_free_adamw",
                "data=digits data.test_ratio=0.1 eval_every=null save_every=null",
                "data=csv data.train=houses.csv data.target=price task=regression data.test_ratio=0.2",
                "data=csv data.train=houses.csv data.target=kind data.test=val.csv data.classes=true",
                "data=csv data.train=houses.csv data.target=price task=regression data.val=val.csv data.test=val.csv",
                "data=tensors data.train=points_train.pt data.val=points_val.pt data.test=points_train.pt "
                "data.input_shape=[4] data.num_classes=5 data.mean=[0.5] data.std=[2]",
                "data=memmap data.train=arrays_train data.val=arrays_val data.test=arrays_val data.input_shape=[4] "
                "data.num_classes=3 data.num_workers=0 limit_test_samples=20",
                "data=image_folder data.root=images data.test_dir=val data.input_shape=[3,16,16] data.num_workers=0 "
                "global_batch_size=6 limit_val_samples=7",
                "data=tokens data.root=texts data.test=train_1.bin data.sequence_length=16 task=language_modeling "
                "global_batch_size=8 model=gpt model.num_layers=1 model.width=16 model.num_heads=2",
            )
        ),
    ],
)
def test_the_test_of_the_best_checkpoint(words: str, train: Train, workdir: Path) -> None:
    write_files(workdir)
    write_houses(Path("val.csv"), 30)
    all_words = [
        *TINY[:-1],
        "limit_train_samples=null",
        *words.split(),
        "test_at_end=true",
        "optimizer.lr=0.02",
    ]
    folder = train(*all_words, name="long")
    assert cli.main(["eject", *all_words, "name=ejected", "--out", "run.py"]) == 0
    text = Path("run.py").read_text()
    for _ in range(2):  # the second time, it only tests again
        run_program(text)
        rows = rows_of(Path("outputs/ejected"))
        assert rows == rows_of(folder)
        assert "test/loss" in rows[-1]


def test_the_published_test_images(published: Published, train: Train, workdir: Path) -> None:
    words = [*TINY[:-1], *words_of(published).split(), "data.val_ratio=0.5", "test_at_end=true"]
    folder = train(*words, name="long")
    assert cli.main(["eject", *words, "name=ejected", "--out", "run.py"]) == 0
    run_program(Path("run.py").read_text())
    assert rows_of(Path("outputs/ejected")) == rows_of(folder)
