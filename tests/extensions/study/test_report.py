"""The numbers in the tables of a study."""

from hydrant.extensions.study.report import results_table


def test_means_that_differ_in_late_digits_are_shown_apart() -> None:
    means = {"adamw": 1234569.0123, "sgd": 1234569.1051}
    rows = [
        {"name": name, "best": {}, "beaten_by": None, "mean": mean, "low": mean - 0.01, "high": mean + 0.01,
         "std": 0.02, "num_seeds": 6, "state": "active"}
        for name, mean in means.items()
    ]  # fmt: skip
    protocol = {"metric": "val/loss", "mode": "min", "alpha": 0.05}
    table = results_table({"protocol": protocol, "tuning": {"trials": []}, "contenders": rows})
    assert [row[1:3] for row in table[1:]] == [
        ["1234569.01", "1234569 to 1234569.02"],
        ["1234569.11", "1234569.1 to 1234569.12"],
    ]
