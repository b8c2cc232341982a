"""Tables in CSV files: what columns become, how rows are split, and which cells are refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from exact_ids import IDS, check_exact, defaults
from sources import joined, spec
from special_files import check_refuses_pipe, options
from training_runs import Train

from hydrant import cli
from hydrant.config.groups import option_path
from hydrant.data import Data
from hydrant.data.splits import cut_fold
from hydrant.errors import ConfigError, DataError, HydrantError
from hydrant.extensions.tables import csv
from hydrant.extensions.tables.csv_file import Spelling, read_layout, read_table

HOUSES = """\
area,city,rooms,price
40,Ulm,1,100
80,Bonn,3,200.5

60,"Ulm",2,150
20,"Kiel
am See",1,50
"""


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    (tmp_path / "houses.csv").write_text(HOUSES)
    return tmp_path / "houses.csv"


def read(train: Path, **changes: Any) -> Data:
    """Return the data by the defaults of conf/data/csv.yaml, with the shapes that the config takes from the file."""
    plain = yaml.safe_load(option_path("data", "csv").read_text())
    del plain["_target_"]
    made = plain | {"train": str(train), "val": str(train), "target": "price",
                    "standardize_targets": False} | changes  # fmt: skip
    layout = read_layout(made)[0]
    return csv(**made | {"input_shape": layout.input_shape, "num_classes": layout.num_outputs})


def samples(data: Data) -> tuple[Any, Any]:
    batch = next(iter(data.val.batches(spec(), 100)))
    return batch.inputs, batch.targets


QUOTED = (
    '"area", "city", "rooms", "price"\r\n"40", "Ulm", "1", "100"\r\n80, "Bonn",3, "200.5"\r\n'
    '60,   "Ulm", 2,"150"\r\n20,"Kiel\nam See", 1, 50\r\n'
)
"""Blanks before the quotes."""


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("\ufeff" + HOUSES, {}),
        (QUOTED, {}),
        (f"\ufeff{QUOTED}", {}),
        (HOUSES.replace(",", ";").replace(".", ","), {"delimiter": ";", "decimal": ","}),
        (HOUSES.replace(".", ",").replace("200,5", '"200,5"'), {"decimal": ","}),
    ],
)
def test_a_file_may_be_written_in_many_ways(
    text: str, changes: dict[str, Any], houses: Path, tmp_path: Path
) -> None:
    (other := tmp_path / "other.csv").write_bytes(text.encode())
    plain = samples(read(houses))
    for one, expected in zip(samples(read(other, **changes)), plain, strict=True):
        assert torch.equal(one, expected)


def test_numbers_are_standardized_and_texts_are_one_hot(houses: Path) -> None:
    data = read(houses)
    inputs, targets = samples(data)
    area, rooms = torch.tensor([40.0, 80, 60, 20]), torch.tensor([1.0, 3, 2, 1])
    torch.testing.assert_close(inputs[:, 0], (area - area.mean()) / area.std(correction=0))
    torch.testing.assert_close(inputs[:, 1], (rooms - rooms.mean()) / rooms.std(correction=0))
    assert inputs[:, 2:].tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0]]  # Bonn, Kiel am See, Ulm
    assert targets.tolist() == [100, 200.5, 150, 50]
    assert (data.input_shape, data.num_classes, targets.dtype) == ((5,), None, torch.float32)


def test_features_targets_and_standardization_are_chosen(houses: Path) -> None:
    data = read(houses, features=["rooms"], target=["price", "area"], standardize=False)
    inputs, targets = samples(data)
    assert inputs.tolist() == [[1], [3], [2], [1]]
    assert targets.tolist() == [[100, 40], [200.5, 80], [150, 60], [50, 20]]


def test_targets_can_be_standardized_too(houses: Path) -> None:
    targets = samples(read(houses, standardize_targets=True))[1]
    prices = torch.tensor([100, 200.5, 150, 50])
    torch.testing.assert_close(targets, (prices - prices.mean()) / prices.std(correction=0))


def test_codes_are_integers_and_unknown_categories_are_zero(houses: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("price,city,area,rooms\n1,Ulm,40,3\n2,Rome,40,2\n")
    data = read(houses, val=str(other), categories="codes", categorical=["rooms"], standardize=False)
    inputs, targets = samples(data)
    assert inputs["numbers"].tolist() == [[40], [40]]
    assert inputs["categories"].tolist() == [[3, 3], [0, 2]]
    assert (inputs["categories"].dtype, data.input_shape) == (torch.int64, None)
    assert targets.tolist() == [1, 2]
    one_hot = samples(read(houses, val=str(other), features=["city"]))[0]
    assert one_hot.tolist() == [[0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("cells", "setting", "names", "indices"),
    [
        (["no", "yes", "no"], "auto", ("no", "yes"), [0, 1, 0]),
        (["2", "0", "1"], "auto", ("0", "1", "2"), [2, 0, 1]),
        (["10", "9", "10"], True, ("9", "10"), [1, 0, 1]),
        (["0.5", "1", "2"], "auto", None, [0.5, 1, 2]),
        (["3", "4", "3"], False, None, [3, 4, 3]),
    ],
)  # fmt: skip
def test_targets_are_classes_or_numbers(
    cells: list[str], setting: Any, names: Any, indices: list[Any], tmp_path: Path
) -> None:
    file = tmp_path / "kinds.csv"
    file.write_text("x,price\n" + "".join(f"1,{cell}\n" for cell in cells))
    data = read(file, classes=setting)
    targets = samples(data)[1]
    assert (data.class_names, targets.tolist()) == (names, indices)
    assert targets.dtype == (torch.float32 if names is None else torch.int64)
    assert data.num_classes == (None if names is None else len(names))


def test_missing_cells_get_the_mean_of_the_training_rows(tmp_path: Path) -> None:
    file, other = tmp_path / "train.csv", tmp_path / "val.csv"
    file.write_text("x,city,price\n1,Ulm,1.5\n3,Bonn,2\nNA,,3\n")
    other.write_text("x,city,price\n,nan,1\n-999,None,1\n")
    words = {"missing_words": ["NA", "nan", -999], "standardize": False, "val": str(other)}
    inputs, _ = samples(read(file, missing="mean", **words))
    assert inputs.tolist() == [[2, 0, 0], [2, 0, 0]]
    refusal = r"data.missing: line 4 of .*train.csv, column 'x' has no value \(1 in"
    with pytest.raises(ConfigError, match=refusal):
        read(file, **words)


def test_only_named_words_are_missing(tmp_path: Path) -> None:
    """`None` is a class of sleep disorders, `NA` the code of Namibia."""
    (file := tmp_path / "rows.csv").write_text("code,price\nNA,None\nnull,Apnea\nnan,nan\nN/A,None\n")
    data = read(file)
    inputs, targets = samples(data)
    assert data.class_names == ("Apnea", "None", "nan")
    assert targets.tolist() == [1, 0, 2, 1]
    assert inputs.argmax(1).tolist() == [1, 3, 2, 0]  # N/A, NA, nan, null
    refusal = r"data\.target: line 2 of .*, column 'price' has no value \(2 in .*; remove"
    with pytest.raises(ConfigError, match=refusal):
        read(file, missing_words=["None"])


@pytest.mark.parametrize("cell", ["?", "NA", "nan", "1,234", "12%", "\u22125", "1_0"])
@pytest.mark.parametrize("column", ["age", "price"])
def test_a_text_among_numbers_is_refused_until_its_meaning_is_set(
    cell: str, column: str, tmp_path: Path
) -> None:
    (file := tmp_path / "rows.csv").write_text(
        "age,price\n" + "".join(f"{n},{n}.5\n" for n in range(9))
        + (f'"{cell}",1.5\n' if column == "age" else f'1,"{cell}"\n')
    )  # fmt: skip
    refusal = rf"^data\.train: '{re.escape(cell)}' in line 11 of .*, column '{column}'"
    with pytest.raises(ConfigError, match=refusal) as error:
        read(file)
    assert ("data.decimal" in str(error.value)) == ("," in cell)
    assert "all cells as texts" in str(error.value).partition("data.missing_words")[0]
    assert f"""data.missing_words=['{cell}']" makes such cells missing""" in str(error.value)
    if column == "age":
        assert samples(read(file, missing_words=[cell], missing="mean"))[0].shape == (10, 1)
        assert "data.categorical=['age']" in str(error.value)
        assert samples(read(file, categorical=["age"]))[0].shape == (10, 10)
    else:
        assert "data.classes=true" in str(error.value)
        assert read(file, classes=True).num_classes == 10


def test_a_target_given_by_its_number_is_looked_for_by_its_name(houses: Path) -> None:
    refusal = r"data.target: .* has no column '1'.* Columns: area, city, price, rooms"
    with pytest.raises(ConfigError, match=refusal):
        read(houses, target=1)


@pytest.mark.parametrize("categories", ["codes", "one_hot"])
def test_learned_categories_that_are_numbers_now_are_refused(categories: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("size,kind,price\n1,a,1.5\n2,b,2.5\n")
    learned = read(file, categories=categories).statistics
    file.write_text("size,kind,price\n1,10,1.5\n2,20,2.5\n")
    now = read(file, categories=categories)
    assert now.with_statistics is not None
    refusal = r"the column 'kind' of .*rows\.csv holds numbers alone, but texts when"
    with pytest.raises(ConfigError, match=refusal):
        now.with_statistics(learned)


def test_learned_codes_take_new_categories_and_columns(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("size,kind,price\n1,a,1.5\n3,b,2.5\n")
    learned = read(file, categories="codes").statistics
    file.write_text("new,size,kind,other,price\nu,3,c,1,1.5\nv,1,b,2,2.5\n")
    now = read(file, categories="codes")
    assert now.with_statistics is not None
    inputs, _ = samples(now.with_statistics(learned))
    assert inputs["numbers"].tolist() == [[1.0], [-1.0]]
    assert inputs["categories"].tolist() == [[0], [2]]


def test_folds_are_standardized_by_the_lines_that_train(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("x,price\n" + "".join(f"{n * n},{n}.5\n" for n in range(50)))
    whole = read(file, val=None, val_ratio=0.0, standardize_targets=True)
    assert (whole.train.num_samples, whole.val.num_samples, whole.test) == (50, 0, None)
    data = cut_fold(whole, 5, 1, seed=0)
    for values in joined(data.train.batches(spec(), 50)):
        assert abs(float(values.double().mean())) < 1e-6
        assert abs(float(values.double().std(correction=0)) - 1) < 1e-6
    assert data.in_target_units is not None
    targets = [joined(part.batches(spec(), 50))[1] for part in (data.train, data.val)]
    prices = data.in_target_units(torch.cat(targets)).sort().values
    torch.testing.assert_close(prices, torch.arange(50).double() + 0.5, rtol=1e-6, atol=1e-6)


def test_predictions_of_large_numbers_are_as_exact_as_their_deviation(tmp_path: Path) -> None:
    """As of times in seconds: float32 has a step of 128 there."""
    file = tmp_path / "rows.csv"
    times = [1_700_000_000 + 0.25 * n for n in range(100)]
    file.write_text("x,time\n" + "".join(f"{n},{time!r}\n" for n, time in enumerate(times)))
    data = read(file, val=None, val_ratio=0.0, target="time", standardize_targets=True)
    assert data.in_target_units is not None
    _, targets = joined(data.train.batches(spec(), 100))
    assert targets.dtype == torch.float32
    assert data.in_target_units(targets).tolist() == pytest.approx(times, rel=0, abs=1e-4)


def test_other_values_in_a_constant_column_stay_small(tmp_path: Path) -> None:
    file, other = tmp_path / "train.csv", tmp_path / "val.csv"
    # The mean of 30 times 0.1 is not 0.1.
    file.write_text("x,price\n" + "".join(f"0.1,{n}.5\n" for n in range(30)))
    other.write_text("x,price\n0.2,1\n0.1,1\n")
    inputs, _ = samples(read(file, val=str(other)))
    torch.testing.assert_close(inputs, torch.tensor([[0.1], [0.0]]))


def test_extra_validation_sets_are_prepared_like_the_training_lines(houses: Path) -> None:
    data = read(houses, extra_val={"north": str(houses)})
    expected, found = (next(iter(part.batches(spec(), 100))) for part in (data.val, data.extra_val["north"]))
    assert torch.equal(found.inputs, expected.inputs)
    with pytest.raises(ConfigError, match=r"data\.extra_val\.north: there is no file none\.csv"):
        read(houses, extra_val={"north": "none.csv"})


def test_a_missing_file_is_refused_with_a_similar_one(houses: Path) -> None:
    with pytest.raises(ConfigError, match=rf"data\.val: there is no file .*; did you mean {houses}\?"):
        read(houses, val=str(houses.with_stem(f"{houses.stem}s")))


def test_rows_are_split_by_the_split_seed_and_statistics_are_those_of_training(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("x,price\n" + "".join(f"{n * n},{n}\n" for n in range(50)))
    parts = {}
    for seed in (0, 1):
        data = read(file, val=None, test_ratio=0.1, split_seed=seed, classes=False)
        assert data.test is not None
        parts[seed] = [joined(source.batches(spec(), 50)) for source in (data.train, data.val, data.test)]
        assert [len(targets) for _, targets in parts[seed]] == [35, 10, 5]
        assert sorted(torch.cat([targets for _, targets in parts[seed]]).tolist()) == list(range(50))
        inputs = parts[seed][0][0].double()
        assert abs(float(inputs.mean())) < 1e-6
        assert abs(float(inputs.std(correction=0)) - 1) < 1e-6
    assert parts[0][1][1].tolist() != parts[1][1][1].tolist()


def test_the_rows_that_test_do_not_depend_on_those_that_validate(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("x,price\n" + "".join(f"{n * n},{n}\n" for n in range(50)))

    def targets(split: str, **ratios: float) -> list[float]:
        data = read(file, val=None, classes=False, **ratios)
        return joined(getattr(data, split).batches(spec(), 50))[1].tolist()

    test = targets("test", val_ratio=0.0, test_ratio=0.2)
    assert all(targets("test", val_ratio=ratio, test_ratio=0.2) == test for ratio in (0.1, 0.5))
    val = targets("val", val_ratio=0.2, test_ratio=0.0)
    assert targets("val", val_ratio=0.2, test_ratio=0.3) == val
    assert not {*val} & {*test}


def test_large_files_are_read_in_parts_and_a_late_text_makes_a_column_of_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrant.extensions.tables.csv_file._CHUNK_ROWS", 3)
    file = tmp_path / "rows.csv"
    file.write_text("a;b\n" + "".join(f"{n};0{n}\n" for n in range(10)) + "10;late\n")
    table = read_table(str(file), Spelling(";", ".", frozenset()), "data.train")
    np.testing.assert_array_equal(table.columns["a"].cells, np.arange(11.0))
    assert table.columns["b"].cells.tolist() == [*(f"0{n}" for n in range(10)), "late"]
    assert table.lines.tolist() == list(range(2, 13))


@pytest.mark.parametrize(
    ("text", "changes", "error", "message"),
    [
        ("x\n1\n", {}, ConfigError, "data.target: .* has no column 'price'.*; if the line has .*, set data.delimiter"),
        ("x,x\n1,2\n", {}, DataError, "names the column 'x' twice"),
        ("x,price\n1,2\n3\n", {}, DataError, "line 3 of .* has 1 cells, but there are 2 columns"),
        ("x,price\n", {}, DataError, "has no rows"),
        ("x,price\ninf,2\n", {}, ConfigError, "data.train: 'inf' in line 2 of .*, column 'x' is no number"),
        ("x,pric\n1,2\n", {}, ConfigError, "data.target: .* has no column 'price'; did you mean 'pric'"),
        ("x,price\n1,2\n", {"features": ["y"]}, ConfigError, "data.features: .* no column 'y'"),
        ("x,price\n1,2\n", {"features": ["price"]}, ConfigError, "none in both"),
        ("x,price\n1,\n", {}, ConfigError, "data.target: line 2 of .*, column 'price' has no value"),
        ("x,price\n1,3\n1,4\n", {}, ConfigError, "data.classes: .*2 whole numbers from 3 to 4; true makes"),
        ("x,price\n1,\n1,a\n", {"classes": False}, ConfigError, "data.target: 'a' in line 3 of .* is no number"),
        ("x,y,price\n1,2,a\n", {"target": ["price", "y"]}, ConfigError, "'a' in line 2 of .* is no number"),
        ("x,y,price\n1,2,3\n", {"target": ["price", "y"], "classes": True}, ConfigError, ".price. has texts"),
        ("x,price\n1,0.5\n", {"val": None}, ConfigError, "1 samples with .* leave none to train on"),
        ("x,price\n1,0.5\n", {"test_ratio": 1.0}, ConfigError, "data.test_ratio: needs a number from 0 to below 1"),
        ("x,price\n,0.5\n", {"missing": "mean"}, ConfigError, "'x' has no number in the training lines"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    text: str, changes: dict[str, Any], error: type[HydrantError], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "table.csv"
    file.write_text(text)
    with pytest.raises(error, match=message):
        read(file, **changes)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1,a\n1,c\n", r"data.target: 'c' in line 3 of .*val.csv, column 'price' is no class of data.train"),
        ("x,a\n", "'x' in line 2 of .*val.csv, column 'x' is no number"),
        ("1,\n", "data.target: line 2 of .*val.csv, column 'price' has no value"),
    ],
)
def test_other_files_must_fit_the_training_file(rows: str, message: str, tmp_path: Path) -> None:
    file, other = tmp_path / "train.csv", tmp_path / "val.csv"
    file.write_text("x,price\n1,a\n2,b\n")
    other.write_text("x,price\n" + rows)
    with pytest.raises(ConfigError, match=message):
        read(file, val=str(other))


def test_a_number_near_a_class_is_not_this_class(tmp_path: Path) -> None:
    file, other = tmp_path / "train.csv", tmp_path / "val.csv"
    file.write_text("x,price\n1,0\n2,1\n")
    other.write_text("x,price\n1,1.0000001\n")
    assert samples(read(file))[1].tolist() == [0, 1]
    with pytest.raises(ConfigError, match=r"'1.0000001' in line 2 of .* is no class of data.train"):
        read(file, val=str(other))


def test_a_run_takes_its_shapes_from_the_file(
    workdir: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(80, 2))
    lines = [f"{x},{y},{'up' if x + y > 0 else 'down'}\n" for x, y in points]
    (workdir / "kinds.csv").write_text("x,y,kind\n" + "".join(lines))
    words = ("data=csv", "data.train=kinds.csv", "data.target=kind", "model.hidden=[4]", "tracker=local",
             "duration=4", "global_batch_size=16", "eval_every=4", "save_every=null")  # fmt: skip
    folder = train(*words)
    assert "input_shape:\n  - 2\n  num_classes: 2\n" in (folder / "config.yaml").read_text()
    train(*words, "data.num_classes=3", name="other", status=2)
    assert "data.num_classes: 3 is configured, but kinds.csv gives 2" in capsys.readouterr().err
    train("data=csv", "tracker=local", name="none", status=2)
    assert "data.train: needs a value" in capsys.readouterr().err


def test_categories_and_classes_are_read_as_they_are_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Zip codes have zeros in front, and numbers of 20 digits are no floats."""
    file, other = tmp_path / "train.csv", tmp_path / "val.csv"
    file.write_text(
        "x,zip,kind\n1,1,3\n2,01067,1\n3,12345678901234567890,2\n4,a1,10\n5,12345678901234567891,1\n"
    )
    other.write_text("x,zip,kind\n1, 01067 ,10\n1,1067,1\n1,1.0,2\n1,12345678901234567891,3\n1,A1,1\n")
    data = read(file, val=str(other), target="kind", classes=True, categories="codes", categorical=["zip"])
    inputs, targets = samples(data)
    assert inputs["categories"][:, 0].tolist() == [2, 0, 0, 4, 0]
    assert data.class_names == ("1", "2", "3", "10")
    assert targets.tolist() == [3, 0, 1, 2, 0]
    message = f"3 of 5 cells are no category of data.train, the first of them: '1067' in line 3 of {other}"
    assert [record.getMessage() for record in caplog.records] == [f"{message}, column 'zip'"]
    assert data.reader is not None
    assert data.reader.files is not None
    (predicted,) = data.reader.files([other]).batches(spec(), 100)
    assert torch.equal(predicted.inputs["categories"], inputs["categories"])
    other.write_text("x,zip,kind\n1,1,1.0\n")
    with pytest.raises(ConfigError, match=r"data\.target: '1\.0' in line 2 of .* is no class of data\.train"):
        read(file, val=str(other), target="kind", classes=True, categorical=["zip"])


@pytest.mark.parametrize("cells", ["1,5;2,25", "1.234,5;2", "12%;7", "1,234;7"])
def test_numbers_with_another_decimal_sign_are_no_categories(cells: str, tmp_path: Path) -> None:
    (file := tmp_path / "rows.csv").write_text(
        "age;price\n" + "".join(f"{cell};0.5\n" for cell in cells.split(";"))
    )
    with pytest.raises(ConfigError, match=r"^data\.train: '.*' in line 2 of .*, column 'age' is no number"):
        read(file, delimiter=";")


def test_an_underscore_makes_no_number(tmp_path: Path) -> None:
    file, other = tmp_path / "train.csv", tmp_path / "val.csv"
    file.write_text("x,price\n1,1\n2,2.5\n")
    other.write_text("x,price\n1_0,1\n")
    with pytest.raises(ConfigError, match=r"'1_0' in line 2 of .*, column 'x' is no number"):
        read(file, val=str(other))


def test_a_file_in_another_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    """Far beyond the first chunk that is decoded."""
    file = tmp_path / "train.csv"
    file.write_bytes(b"x,price\n" + b"1,2\n" * 20_000 + b"\xfc,2\n")
    with pytest.raises(DataError, match=rf"^{file}: line 20002 is no text in UTF-8 \(byte 0xfc\); save "):
        read(file)


@pytest.mark.parametrize(("number", "standardize"), [("1e200", True), ("1e200", False), ("-1e39", True)])
def test_a_number_that_float32_cannot_hold_is_named(tmp_path: Path, number: str, standardize: bool) -> None:
    file = tmp_path / "train.csv"
    file.write_text(f"x,price\n1,1\n{number},2.5\n3,2\n")
    with pytest.raises(
        ConfigError,
        match=rf"^data\.train: '{number}' in line 3 of .*, column 'x' is no number that fits float32",
    ):
        read(file, standardize=standardize)


def test_a_file_to_predict_may_have_a_single_column(workdir: Path, train: Train) -> None:
    """And the run may be of the version that knew the words of missing cells itself."""
    (workdir / "t.csv").write_text("x,price\n" + "".join(f"{n},{2 * n}.5\n" for n in range(40)))
    (workdir / "new.csv").write_text("x\n3\nNaN\nN/A\n")
    (workdir / "wrong.csv").write_text("x;y\n3;1\n")
    run = train("data=csv", "data.train=t.csv", "data.target=price", "task=regression", "model=mlp", "duration=2",
                "tracker=local", "global_batch_size=8", "data.missing=mean")  # fmt: skip
    config = yaml.safe_load((run / "config.yaml").read_text())
    del config["data"]["missing_words"], config["data"]["decimal"]
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert cli.main(["predict", str(run), "new.csv", "--out", "out.csv"]) == 0
    assert len((workdir / "out.csv").read_text().splitlines()) == 4
    assert cli.main(["predict", str(run), "wrong.csv", "--out", "wrong_out.csv"]) != 0


@pytest.mark.parametrize(
    ("inputs", "out"), [("new.csv", "new.csv"), ("new.csv", "link.csv"), ("val", "t.csv")]
)
def test_predictions_do_not_replace_the_samples(
    inputs: str, out: str, workdir: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("t.csv", "new.csv"):
        (workdir / name).write_text("x,y\n" + "1,0\n2,1\n" * 20)
    (workdir / "link.csv").symlink_to("new.csv")
    run = train(
        "data=csv", "data.train=t.csv", "data.target=y", "duration=2", "tracker=local", "global_batch_size=8"
    )
    before = [(workdir / name).read_bytes() for name in ("t.csv", "new.csv")]
    assert cli.main(["predict", str(run), inputs, "--out", out]) == 2
    assert "holds samples, which the predictions would replace; give another file" in capsys.readouterr().err
    assert [(workdir / name).read_bytes() for name in ("t.csv", "new.csv")] == before
    assert not [*workdir.glob("*.partial")]


def test_a_saved_run_keeps_the_scales_of_its_own_training_lines(
    workdir: Path, train: Train, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The file then has other values, and its columns in another order."""
    lines = [(n, "ab"[n % 2], 2.5 * n) for n in range(40)]
    (workdir / "t.csv").write_text("x,kind,price\n" + "".join(f"{x},{k},{y}\n" for x, k, y in lines))
    (workdir / "new.csv").write_text("x,kind\n3,a\n5,b\n")
    words = ("data=csv", "data.train=t.csv", "data.target=price", "task=regression", "model=mlp", "folds=4",
             "tracker=local", "global_batch_size=8", "duration=4", "save_every=2")  # fmt: skip
    run = train(*words)
    assert cli.main(["predict", str(run), "new.csv", "--out", "before.csv"]) == 0
    changed = "".join(f"{k},{9 * x + 7},{3 * y}\n" for x, k, y in lines)
    (workdir / "t.csv").write_text(f"kind,x,price\n{changed}")
    assert cli.main(["predict", str(run), "new.csv", "--out", "after.csv"]) == 0
    assert (workdir / "after.csv").read_bytes() == (workdir / "before.csv").read_bytes()
    assert "inputs are prepared as in its training" in caplog.text

    begun = f"resume={run / 'checkpoints' / 'update_00000002'}"
    train(*words, begun, name="on", status=2)
    assert "error: data: the training samples have changed: data." in capsys.readouterr().err
    on = train(*words, begun, "resume_strict=false", name="on")
    assert "the training samples have changed" in (on / "train.log").read_text()


def test_a_run_does_not_continue_on_another_validation_file_of_the_same_name(
    workdir: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("t.csv", "v.csv"):
        (workdir / name).write_text("x,y\n" + "".join(f"{n % 8},{n % 8}.5\n" for n in range(40)))
    words = ("data=csv", "data.train=t.csv", "data.val=v.csv", "data.target=y", "task=regression", "model=mlp",
             "tracker=local", "global_batch_size=8", "eval_every=2", "log_every=2")  # fmt: skip
    first = train(*words, "duration=4")
    (workdir / "v.csv").write_text((workdir / "v.csv").read_text().replace("0,0.5", "0,90.5"))
    train(*words, "duration=8", f"resume={first}", name="on", status=2)
    assert "error: resume: outputs/run holds a run of another config: duration" in capsys.readouterr().err
    train(*words, "duration=4", f"resume={first / 'checkpoints' / 'update_00000004'}", name="on", status=2)
    assert "error: data: the content of data.val has changed; restore the file, or" in capsys.readouterr().err
    run = train(*words, "duration=8", "resume_strict=false")
    assert "the content of data.val has changed; the run continues" in (run / "train.log").read_text()
    best = yaml.safe_load((run / "summary.json").read_text())["best"]  # of the new file, which is harder
    assert best["num_updates"] > 4

    lines = (workdir / "t.csv").read_text().splitlines(keepends=True)
    (workdir / "t.csv").write_text("".join([lines[0], *reversed(lines[1:])]))
    run = train(*words, "duration=10", "optimizer.lr=1e-12", "resume_strict=false")
    assert "data.train has changed; the run continues" in (run / "train.log").read_text()
    assert yaml.safe_load((run / "summary.json").read_text())["best"] == best  # of the same validation file


def test_a_run_continues_where_other_missing_words_change_no_cell(
    workdir: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """As that of a version which knew the words itself."""
    for name, cell in (("same", "b"), ("other", "NA")):
        rows = "".join(f"{n},{cell if n % 4 else 'a'},{n}.5\n" for n in range(20))
        (workdir / f"{name}.csv").write_text(f"x,kind,y\n{rows}")
        words = ("data=csv", f"data.train={name}.csv", "data.target=y", "task=regression", "model=mlp", "duration=4",
                 "data.missing=mean", "tracker=local", "global_batch_size=4", "save_every=2")  # fmt: skip
        run = train(*words, "data.missing_words=[NA]", name=name)
        begun = f"resume={run / 'checkpoints' / 'update_00000002'}"
        train(*words, begun, name=f"on_{name}", status=0 if name == "same" else 2)
    assert "holds a run of another config: data.input_shape ([2] there, [3] here)" in capsys.readouterr().err


def test_the_samples_that_train_standardize_alone(workdir: Path, train: Train) -> None:
    """Not those that `limit_train_samples` leaves out, with folds too."""
    lines = [f"{n % 8},{n % 8}.5\n" for n in range(20)]
    (workdir / "all.csv").write_text("".join(["x,y\n", *lines, *(f"{100 + n},{n}.5\n" for n in range(20))]))
    (workdir / "few.csv").write_text("".join(["x,y\n", *lines]))
    words = ("data=csv", "data.val=few.csv", "data.target=y", "task=regression", "model=mlp", "model.num_classes=1",
             "tracker=local", "global_batch_size=4", "duration=4")  # fmt: skip
    limited = train(*words, "data.train=all.csv", "limit_train_samples=20", name="limited")
    few = train(*words, "data.train=few.csv", name="few")
    results = [
        yaml.safe_load((run / "summary.json").read_text())["metrics"]["val/loss"] for run in (limited, few)
    ]
    assert results[0] == results[1]

    data = read(workdir / "all.csv", target="y", val=None)
    folded = cut_fold(data, 2, 0, 0, limit=5)
    expected = folded.train.batches(spec(), 100)
    inputs = next(iter(expected)).inputs[:5, 0]
    assert abs(inputs.mean().item()) < 1e-6


@pytest.mark.slow
def test_codes_of_ids_arrive_exactly_in_every_precision(tmp_path: Path) -> None:
    """A table whose codes are the ids: as many categories as codes, of which only some are validated."""
    file, val = tmp_path / "ids.csv", tmp_path / "val.csv"
    file.write_text("ids,more,label\n" + "".join(f"{n},{n},0.5\n" for n in range(1, 2**16 + 2)))
    val.write_text("ids,more,label\n" + "".join(f"{a},{b},0.5\n" for a, b in (IDS % 2**16).tolist()))
    made = defaults("csv") | {"train": str(file), "val": str(val), "target": "label", "categories": "codes",
                               "categorical": ["ids", "more"]}  # fmt: skip
    layout, _ = read_layout(made)
    check_exact(csv(**made | {"num_classes": layout.num_outputs}), 2**16)


def test_a_pipe_in_the_place_of_a_table_is_refused(tmp_path: Path) -> None:
    def read(file: Path) -> Any:
        return csv(**options("csv", train=str(file), val=str(file), target="x"))

    check_refuses_pipe(read, "table.csv", tmp_path)
