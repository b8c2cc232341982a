"""`hydrant docs`: pages and sections of the documentation."""

import re

import pytest
from repository import ROOT

from hydrant import cli

PAGE = (ROOT / "docs" / "guides" / "compare.md").read_text()


@pytest.mark.parametrize("word", ["compare", "guides/compare", "docs/guides/compare.md"])
def test_a_page_is_printed_by_its_path_or_its_last_part(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["docs", word]) == 0
    assert capsys.readouterr().out == PAGE


def test_the_sections_of_a_page_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", "compare#"]) == 0
    words = capsys.readouterr().out.split()
    assert {"compare#the-verdict", "compare#the-groups"} <= {*words}
    assert cli.main(["docs", *words[1:]]) == 0, "the first one is the page"
    text = capsys.readouterr().out
    assert text.replace("\n\n", "\n") == PAGE[PAGE.index("\n## ") + 1 :].replace("\n\n", "\n")


def test_a_comment_in_a_code_block_is_no_section(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "guides" / "tasks.md").read_text()
    assert "\n# " in text
    assert cli.main(["docs", "guides/tasks#"]) == 0
    assert len({*capsys.readouterr().out.split()}) == text.count("\n## ") + 1


def test_an_unknown_section_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", "compare#verdict"]) == 2
    assert "the-verdict" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "said"),
    [("sweps", "did you mean sweeps?"), ("a", "docs` lists all"), ("qqqq", "docs` lists all")],
)
def test_a_word_of_no_page_is_refused(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", word]) == 2
    assert said in capsys.readouterr().err


QUESTIONS = {
    "How do I train my own Module and Dataset?": ("own module dataset sweep", "guides/module-and-dataset"),
    "How do I use my own loss or metric?": ("own loss metric", "guides/tasks"),
    "How do I use my own schedule?": ("own schedule", "guides/schedules"),
    "How do I train a GAN, a PINN, or an LSTM that keeps its state?": ("train a GAN", "guides/other-loops"),
    "Which optimizer is better for my model?": ("which optimizer is better", "guides/choosing-an-optimizer"),
    "What does each key of a sweep change (a factorial)?": ("factorial sweep", "guides/compare-questions"),
    "How do I continue a run after a kill?": ("continue run killed", "guides/resuming"),
    "How do I run on SLURM, requeued, or in a container?": ("slurm requeue container", "guides/slurm"),
    "How do I train on several GPUs?": ("several GPUs", "guides/ranks"),
    "Does torch.compile work with DDP?": ("compile ddp", "guides/compile"),
    "How do I find a learning rate?": ("lr finder", "guides/hooks-ready"),
    "How do I search for hyperparameters?": ("hyperparameter search", "guides/optuna"),
    "How do I export a trained model?": ("export a trained model", "guides/export"),
    "How do I predict for new files?": ("predict files", "guides/predict"),
    "How do I make a table for a paper?": ("table for a paper", "guides/compare"),
    "How do I write a hook (a callback)?": ("write a hook", "guides/hooks"),
    "How do I use W&B, and offline?": ("wandb offline", "guides/tracking"),
    "How do I freeze layers of a pretrained model?": ("freeze layers", "guides/fine-tuning"),
    "How do I cross-validate, or test at the end?": ("cross-validation", "guides/splits"),
    "How do I save memory?": ("save memory", "start/faq"),
    "How do I use mixed precision?": ("mixed precision", "start/faq"),
    "How do I end a run early (early stopping)?": ("early stopping", "guides/hooks-ready"),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_of_users_leads_to_its_page(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By one click from the first page, and as the first one that a search for its words lists."""
    words, page = QUESTIONS[question]
    first_page = (ROOT / "docs" / "README.md").read_text()
    assert re.search(rf"^\| {re.escape(question)} \| \[[^\]]+\]\({page}\.md[#)]", first_page, re.MULTILINE)
    assert cli.main(["docs", *words.split()]) == 0
    assert capsys.readouterr().out.split()[0] == page


WORDS = {
    "guides/failures": ["out of memory", "oom"],
    "guides/ranks": ["multi-GPU", "multigpu", "multi gpu", "two gpus", "distributed training"],
    "guides/hooks-ready": ["early-stopping"],
    "guides/fine-tuning": ["fine-tune"],
    "start/faq": ["mixed-precision", "reproducible"],
    "guides/resuming": ["how to resume"],
    "guides/tracking": ["W&B"],
}


@pytest.mark.parametrize(("page", "words"), [(page, one) for page, each in WORDS.items() for one in each])
def test_words_lead_to_the_page_about_them(page: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", *words.split()]) == 0
    assert capsys.readouterr().out.startswith(f"{page} ")


def test_a_choice_of_an_option_is_searched_as_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", "hydra/sweeper=study"]) == 0
    assert "guides/study " in capsys.readouterr().out


def test_the_first_page_has_these_questions_only() -> None:
    table = (ROOT / "docs" / "README.md").read_text().partition("| question | page |")[2].partition("\n\n")[0]
    assert [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()[2:]] == list(QUESTIONS)
