"""`best` names no checkpoint of a former metric."""

from pathlib import Path

from hydrant.training.checkpoint.folder import BEST, LAST, CheckpointFolder, Retention


def test_the_link_is_removed_if_the_best_checkpoint_is_missing(tmp_path: Path) -> None:
    for n in (5, 40):
        (tmp_path / f"update_{n:08d}").mkdir()
    folder = CheckpointFolder(tmp_path, Retention(last=2))
    assert folder.mark_best(5)
    folder.roll_back_to(40, 5, foreign=None)
    assert (tmp_path / BEST).readlink() == Path("update_00000005")
    folder.roll_back_to(40, 25, foreign=None)  # as by a metric whose best update is not kept
    assert not (tmp_path / BEST).is_symlink()
    assert (tmp_path / LAST).readlink() == Path("update_00000040")
