"""A project behind a symbolic link, and run folders that are links to another disk: one run has one name."""

import json
from pathlib import Path

import pytest
from tiny_runs import TINY

from hydrant import cli


@pytest.fixture(params=["project", "root of the runs"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    """Two working folders that hold the same runs: a folder, and one that is a link or has links."""
    real, linked = tmp_path / "real", tmp_path / "linked"
    real.mkdir()
    if request.param == "project":
        linked.symlink_to(real)
    else:
        linked.mkdir()
        for root in ("outputs", "multirun"):
            (real / root).mkdir()
            (linked / root).symlink_to(real / root)
    return [real, linked]


@pytest.mark.extension
def test_runs_behind_links_are_known_by_one_name(
    places: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are trained once, resumed and compared from either side."""
    outputs = list[str]()
    for folder in (places[1], places[0]):
        monkeypatch.chdir(folder)
        assert cli.main(["train", *TINY, "name=one"]) == 0
        assert cli.main(["train", "--multirun", *TINY, "hydra/launcher=basic", "name=two", "seed=0,1"]) == 0
        assert cli.main(["status", "multirun/two"]) == 0
        output = capsys.readouterr()
        outputs.append(output.out + output.err)
        assert "run folder  outputs/one" in outputs[0]
        assert "\nmultirun/two: 2 runs: 2 finished\n" in outputs[-1]
        assert "results     multirun/two/sweep.csv" in outputs[-1]
    assert str(places[0]) not in outputs[0]
    assert "already finished: outputs/one, 4 updates" in outputs[1]
    assert outputs[1].count("already finished: multirun/two/seed-") == 2
    runs = ["outputs", "multirun", *(str(place / "multirun" / "two") for place in places)]
    assert cli.main(["compare", *runs, "--json", "--details"]) == 0
    names = [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]]
    assert len(names) == len(set(names)) == 3
    assert len(list(places[0].rglob("summary.json"))) == 3
