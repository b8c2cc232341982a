"""Optimizers that take turns, and losses of a whole batch: the weights of plain loops at any division, and resumed."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import triplets
from example_projects import EXAMPLES, use_example
from marks import slow, slow_but
from ranks import run_on_ranks
from run_folders import assert_close_rows, assert_same_state, rows, training, weights
from torch.testing import assert_close
from training_runs import Train, seeded_batches, whole_and_resumed

import hydrant
from examples.loops import contrastive, gan
from hydrant.training.prepare.build import prepare

DCGAN = ("experiment=gan", "tracker=local", "duration=12", "log_every=4", "eval_every=null", "save_every=4",
         "global_batch_size=16", "optimizer.fused=false")  # fmt: skip
WGAN_GP = (*DCGAN, "task.is_wgan=true", "model.is_normed=false",
           "update_order=[[critic],[critic],[critic],[critic],[critic,generator]]")  # fmt: skip
INFO = (*DCGAN, "model.is_normed=false", "+optimizers.both={parts: [generator, critic], losses: [generator]}",
        "update_order=[[critic,generator,both]]")  # fmt: skip

SHORT = ("tracker=local", "duration=6", "log_every=3", "eval_every=3", "save_every=3", "global_batch_size=16",
         "eval_batch_size=60")  # fmt: skip
WHOLE = {
    "halves": ("experiment=contrastive", *SHORT),
    "triplets": (*SHORT, "allow_targets=[triplets]", "~model.hidden", "~model.dropout", "task=supervised",
                 "optimizer=sgd", "scheduler=constant", "max_grad_norm=1", "model._target_=triplets.make_encoder",
                 "task.loss_of_batch=true", "task.loss._target_=triplets.batch_hard", "+task.loss._partial_=true"),
}  # fmt: skip


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on two ranks; return the folder of the runs."""
    folder = tmp_path_factory.mktemp("ranks")
    for file in (Path(f"{triplets.__file__}"), *(EXAMPLES / "loops").glob("*.py")):
        (folder / file.name).write_text(file.read_text())
    runs: dict[str, Sequence[str]] = {
        f"{name}{size}": (*WHOLE[name], f"micro_batch_size={size}") for name in WHOLE for size in (8, 4)
    }
    runs["dcgan"] = (*DCGAN, "micro_batch_size=8")
    with pytest.MonkeyPatch.context() as patch:
        use_example("loops", patch)
        run_on_ranks(2, folder, [("train", f"name={name}", *words) for name, words in runs.items()])
    return folder / "outputs"


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> None:
    use_example("loops", monkeypatch)


def losses(folder: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k.startswith("train/")} for row in rows(folder)]


@pytest.mark.parametrize(("words", "every"), [(WGAN_GP, 5), *slow((DCGAN, 1), (INFO, 1))])
def test_the_weights_are_those_of_the_authors_loops(
    words: tuple[str, ...], every: int, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = prepare(hydrant.compose(words))
    models = plan.task.model
    gan.plain_loop(models, seeded_batches(plan), every=every, has_third=words is INFO)
    whole, resumed = whole_and_resumed(train, monkeypatch, words, stop_at=7)
    assert_same_state(dict(models.state_dict()), weights(whole))
    assert_same_state([weights(whole), training(whole)], [weights(resumed), training(resumed)])
    assert rows(whole) == rows(resumed)
    for row in rows(whole)[every > 1 :]:  # the generator of WGAN-GP has no turn before the first log point
        assert row["train/loss"] == pytest.approx(row["train/critic"] + row["train/generator"])


@pytest.mark.parametrize(("words", "name"), [*slow((DCGAN, "dcgan")), (WHOLE["halves"], "halves8")])
def test_ranks_micro_batches_and_a_loss_scaler_change_rounding_only(
    words: Sequence[str], name: str, train: Train, on_two_ranks: Path
) -> None:
    one = train(*words, "micro_batch_size=8", name="one")
    assert_close_rows(one, on_two_ranks / name)
    scaled = train(*words, "micro_batch_size=8", "precision=fp16", "precision.init_scale=1e9", name="fp16")
    assert rows(scaled)[-1]["optim/num_skipped"]
    assert_close_rows(one, scaled, rel=0.02, abs=0.02, read=losses)


def test_a_single_optimizer_in_turn_is_no_turn_in_evaluation(train: Train) -> None:
    words = ("eval_every=4", "~optimizers.critic", "optimizers.generator.parts=null")
    alone = train(*DCGAN, *words, "optimizers.generator.losses=null", "update_order=[[generator]]")
    assert {"val/critic", "val/generator"} < rows(alone)[-1].keys()


@pytest.mark.parametrize("name", slow_but(("halves",), WHOLE))
def test_a_loss_of_a_whole_batch_is_that_of_a_plain_loop(
    name: str, train: Train, monkeypatch: pytest.MonkeyPatch, on_two_ranks: Path
) -> None:
    whole, resumed = whole_and_resumed(train, monkeypatch, (*WHOLE[name], "micro_batch_size=4"), stop_at=5)
    assert_same_state([weights(whole), training(whole)], [weights(resumed), training(resumed)])
    folders = [(size, train(*WHOLE[name], f"micro_batch_size={size}", name=f"{size}")) for size in (16, 8)]
    folders.append((4, whole))
    folders += [(size, on_two_ranks / f"{name}{size}") for size in (8, 4)]

    @cache
    def of_plain_loop(size: int) -> object:
        plan = prepare(hydrant.compose([*WHOLE[name], f"micro_batch_size={size}"]))
        if name == "triplets":
            triplets.plain_loop(plan.task, plan.data.train.stream(plan.spec), 6)
        else:
            contrastive.plain_loop(plan.task.model, seeded_batches(plan))
        return dict(plan.task.model.state_dict())

    for size, folder in folders:  # without dropout, the division changes rounding only
        assert_close(weights(folder), of_plain_loop(size if name == "triplets" else 16), rtol=0, atol=1e-6)
        if name == "halves":
            assert_close_rows(folders[0][1], folder)
