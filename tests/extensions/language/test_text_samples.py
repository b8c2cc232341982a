"""Texts are a function of the weights, the seed and the number of updates, and are drawn as the arguments say."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from language_models import LENGTH, VOCAB_SIZE, gpt
from marks import slow
from torch import Tensor, nn
from training_runs import Train, train_in_child

from hydrant import cli
from hydrant.extensions.language.language_modeling import generate
from hydrant.extensions.language.token_files import Vocabulary, new_folder, write_tokens

WORDS = ("data=tokens", "data.root=corpus", "data.sequence_length=8", "model=gpt", "model.num_layers=2",
         "model.width=16", "model.num_heads=2", "task=language_modeling", "hook=text_samples",
         "hooks.text_samples.prompts=[ab,c]", "hooks.text_samples.num_tokens=12", "tracker=local", "duration=4",
         "global_batch_size=4", "eval_batch_size=8", "eval_every=2", "log_every=2", "save_every=2")  # fmt: skip


class Follows(nn.Module):
    """The next token is the one after the last, or with a smaller logit the one after that."""

    def forward(self, tokens: Tensor) -> Tensor:
        logits = torch.full((*tokens.shape, VOCAB_SIZE), -9.0)
        logits.scatter_(-1, (tokens[..., None] + 2) % VOCAB_SIZE, 0.5)
        return logits.scatter_(-1, (tokens[..., None] + 1) % VOCAB_SIZE, 1.0)


def continued(model: nn.Module, seed: int = 0, **changed: Any) -> list[int]:
    settings: dict[str, Any] = {"max_context": LENGTH, "temperature": 1.0, "top_k": None}
    generator = torch.Generator().manual_seed(seed)
    tokens = generate(model, torch.tensor([3, 4]), 40, generator=generator, **settings | changed)
    assert tokens[:2].tolist() == [3, 4]
    return tokens[1:].tolist()


def test_temperature_and_top_k_choose_among_tokens() -> None:
    steps = {
        name: [(b - a) % VOCAB_SIZE for a, b in itertools.pairwise(ids)]
        for name, ids in {
            "greedy": continued(Follows(), temperature=0),
            "best": continued(Follows(), top_k=1),
            "two": continued(Follows(), top_k=2),
            "cold": continued(Follows(), temperature=1e-3),
            "hot": continued(Follows(), temperature=100.0),
        }.items()
    }
    assert steps["greedy"] == steps["best"] == steps["cold"] == [1] * 40
    assert {*steps["two"]} == {1, 2}
    assert len({*steps["hot"]}) > 5
    assert continued(Follows(), seed=1, top_k=2) != continued(Follows(), seed=2, top_k=2)


def test_a_model_reads_no_more_than_its_longest_sequence() -> None:
    torch.manual_seed(0)
    model = gpt(zero_init=False, positions="learned").eval()
    assert len(continued(model)) == 41  # more than its 16 positions
    assert continued(model) == continued(model)


def write_corpus() -> None:
    with new_folder(Path("corpus")) as folder:
        for split in ("train", "val"):
            write_tokens(folder, split, "uint16", [torch.tensor([*b"abcdefgh", 256] * 40).numpy()])
        Vocabulary("bytes", 257, 256, "end", [1] * 256 + [0]).write(folder)


def texts(run: Path) -> dict[str, str]:
    return {str(path.relative_to(run)): path.read_text() for path in sorted((run / "texts").rglob("*.txt"))}


@pytest.mark.slow
def test_a_run_writes_the_texts_of_each_evaluation(train: Train) -> None:
    write_corpus()
    first, again, other = (
        texts(train(*WORDS, *words, name=name))
        for name, words in {"first": (), "again": (), "other": ("seed=1",)}.items()
    )
    assert len(first) == 6
    assert all(first[f"texts/sample_0/update_0000000{n}.txt"].startswith("ab") for n in (0, 2, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize("parallel", slow("ddp", "fsdp"))
def test_ranks_write_the_texts_of_one(parallel: str, workdir: Path) -> None:
    write_corpus()
    one = train_in_child(workdir, "one", *WORDS)
    two = train_in_child(workdir, "two", *WORDS, f"parallel={parallel}", "parallel.num_processes=2")
    assert texts(one) == texts(two)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("eval_every=null", "best.metric=val/loss"), "eval_every: texts are made after evaluations"),
        (("hooks.text_samples.prompts=[a,'']",), "hooks.text_samples.prompts"),
        *slow(
            (("hooks.text_samples.prompts=[]",), "hooks.text_samples.prompts: needs the beginnings of texts"),
            (("hooks.text_samples.temperature=-1",), "hooks.text_samples.temperature"),
            (("hooks.text_samples.top_k=0",), "hooks.text_samples.top_k"),
            (("hooks.text_samples.num_tokens=0",), "hooks.text_samples.num_tokens"),
        ),
    ],
)
def test_what_gives_no_text_is_refused(
    words: tuple[str, ...], message: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus()
    assert cli.main(["train", *WORDS, *words]) == 2
    assert message in capsys.readouterr().err


def test_data_without_text_are_refused(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "hook=text_samples", "tracker=local"]) == 2
    assert "data: text_samples needs data that turn text into tokens" in capsys.readouterr().err
