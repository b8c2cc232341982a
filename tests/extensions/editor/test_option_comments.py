"""A key's comment in the YAML file of a part begins with the first sentence that the part's docstring says about it."""

import inspect
import re
from collections.abc import Iterator

import pytest
from repository import conf_files

from hydrant.extensions.editor.json_schema import read_option
from hydrant.safety.targets import locate

OPTIONS = [
    (name.rpartition("/")[0], path.stem)
    for name, path in conf_files("*/**/*.yaml").items()
    if re.search(r"^_target_: hydrant\.", path.read_text(), re.MULTILINE)
]
IN_YAML = {"None": "null", "True": "true", "False": "false", "`": "", "'": ""}


def documented(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield each argument with an entry of its own in `Args:`, and the first sentence about it, as YAML writes it."""
    section = re.search(r"^Args:\n((?: .*\n?)*)", docstring, re.MULTILINE)
    for entry in re.split(r"\n(?= {4}\w)", section[1] if section else ""):
        name, _, text = " ".join(entry.split()).partition(": ")
        if name.isidentifier():
            yield name, plain(re.split(r"\.(?: (?=[A-Z`])|$)", text)[0])


def plain(sentence: str) -> str:
    return re.sub(r"\b(?:None|True|False)\b|[`']", lambda found: IN_YAML[found[0]], sentence)


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_comments_and_docstrings_agree(group: str, name: str) -> None:
    option = read_option(group, name)
    assert option.target is not None
    sentences = dict(documented(inspect.getdoc(locate(option.target, group)) or ""))
    for key in option.keys.keys() & sentences:
        comment, default = plain(option.keys[key].comment), option.keys[key].default
        # The keys of a part in the part, or of another group, are explained there.
        is_elsewhere = isinstance(default, dict) or str(default).startswith("${")
        assert comment.startswith(sentences[key]) or (is_elsewhere and not comment), f"# {sentences[key]}"


def test_the_first_sentence_of_each_argument_is_found() -> None:
    docstring = """A part.

    Args:
        rate: None: off, or `log`. At most 1,
            and above 0.
        first, second: both.
        is_on: True: it runs

    Raises:
        ValueError: no.
    """
    assert dict(documented(inspect.cleandoc(docstring))) == {
        "rate": "null: off, or log",
        "is_on": "true: it runs",
    }
