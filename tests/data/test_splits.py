"""What has changed between the data of two runs."""

from dataclasses import replace
from typing import Any

import pytest

from hydrant.data.splits import DataIdentity

IDENTITY = DataIdentity(
    ["cat", "dog"], {"mean": {"x": 0.1}}, {"train": 40, "val": 10}, {"train": "a1", "val": "b2"},
    {"val": 10, "data.val": "v.csv", "folds": None},
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        ({"statistics": {"mean": {"x": 0.1 + 1e-15}}}, {}),  # rounding
        ({"statistics": {}, "class_names": None, "data_files": {}}, {}),  # unknown
        ({"class_names": ["cat", "cow"]}, {"class_names": "class 1 was 'dog' and is now 'cow'"}),
        ({"statistics": {"mean": {"x": 0.2}}}, {"statistics": "data.mean.x was 0.1 and is now 0.2"}),
        ({"samples": {"train": 30, "val": 10}}, {"samples": "the number of samples.train was 40 and is now 30"}),
        ({"data_files": {"train": "a9", "val": "b2", "test": "c"}}, {"data_files": "data.train"}),
        ({"data_files": {"train": "a1", "val": "b9"}}, {"data_files": "data.val", "validated_by": ""}),
        ({"validated_by": {**IDENTITY.validated_by, "data.val": None}, "data_files": {"train": "a9"}},
         {"data_files": "data.train", "validated_by": ""}),
    ],
)  # fmt: skip
def test_the_identity_of_data_names_what_differs(
    changes: dict[str, Any], differences: dict[str, str]
) -> None:
    assert IDENTITY.differences(replace(IDENTITY, **changes)) == differences
    assert not IDENTITY.differences(IDENTITY)
