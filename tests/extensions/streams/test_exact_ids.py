"""Ids arrive exactly from streams, in every precision."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from exact_ids import IDS, Items, check_exact, defaults

from hydrant.data import Data
from hydrant.extensions.streams import hugging_face, stream


class Stream:
    """The same ids, which can only be read in their order."""

    def __iter__(self) -> Iterator[tuple[dict[str, Any], int]]:
        return (Items()[index] for index in range(len(IDS)))


def _from_stream(folder: Path) -> Data:
    return stream(
        **defaults("stream")
        | {"train": Stream(), "val": Stream(), "num_samples": len(IDS), "num_val_samples": len(IDS)}
    )


def _from_hugging_face(folder: Path) -> Data:
    datasets = pytest.importorskip("datasets")  # no wheel of its pyarrow for Python 3.15
    split = datasets.Dataset.from_dict({"ids": IDS.tolist(), "label": list(range(len(IDS)))})
    datasets.DatasetDict(train=split, validation=split).save_to_disk(folder / "saved")
    return hugging_face(**defaults("hugging_face") | {"path": str(folder / "saved")})


@pytest.mark.parametrize("make", [_from_stream, _from_hugging_face])
def test_ids_arrive_exactly_in_every_precision(make: Callable[[Path], Data], tmp_path: Path) -> None:
    check_exact(make(tmp_path))
