"""Texts of a config in an ejected program are literals: whatever they say, the program has the same syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
from attacks import Trials

from hydrant.commands.eject import layout
from hydrant.commands.eject.assemble import assemble
from hydrant.commands.eject.command import describe, main, program
from hydrant.commands.eject.cutting import cut
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError
from hydrant.training.prepare.build import prepare

TEXTS = [
    "plain", "größe 数 🌊", "", " ", "#", "# a comment", "a\nprint(1)", "a\r\nprint(1)", "a\rb", "\0", "\x0c\x1b[31m",
    "\u2028print(1)", "\x85", "\ud800", "\udcff", "C:\\New", "\\", "\\\\", "ends with \\", '"', "'", '"""', "'''",
    '""""', '"""+print(1)+"""', "'''+print(1)+'''", '\\"""+print(1)#', "{print(1)}", "{{x}}", "%s %(a)s", "\\N{DASH}",
    "\\x", "\\u12", "$(touch x)", "`touch x`", "a\tb", "\u202eevil\u202c", "x" * 300, 'mixed "quotes\' and \\',
]  # fmt: skip
"""What may be in a name of a folder, a note, a column or a class."""


def without_texts(source: str, *texts: str) -> str:
    """Return the syntax tree of a program in which these texts, and its docstring, have no content."""
    tree = ast.parse(source)
    assert ast.get_docstring(tree) is not None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_doc = node is getattr(tree.body[0], "value", None)
            node.value = "" if is_doc or any(text and text in node.value for text in texts) else node.value
    return ast.dump(tree)


@pytest.mark.parametrize("text", TEXTS)
def test_a_literal_is_the_text(text: str) -> None:
    assert ast.literal_eval(layout.literal(text)) == text
    assert ast.literal_eval(layout.literal({text: [text, 0.5]})) == {text: (text, 0.5)}
    assert ast.literal_eval(layout.pattern_literal(text)) == text
    assert layout.literal(text).isprintable()
    layout.literal(text).encode()


@pytest.mark.parametrize("text", TEXTS)
def test_a_docstring_has_the_text_and_a_comment_ends_with_its_line(text: str) -> None:
    tree = ast.parse(layout.docstring(text))
    assert len(tree.body) == 1
    value = tree.body[0].value if isinstance(tree.body[0], ast.Expr) else None
    assert isinstance(value, ast.Constant)
    assert value.value == text
    assert ast.parse(layout.comment(text)).body == []
    assert "\n" not in layout.comment(text)


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), 1e308, 5e-324, -0.0, 10**30])
def test_a_literal_is_the_number(number: float) -> None:
    assert eval(layout.literal(number)) == number
    assert eval(layout.literal(float("nan"))) != eval(layout.literal(float("nan")))


def test_no_text_becomes_code(trials: Trials, workdir: Path) -> None:
    plan = prepare(check(compose([])), is_preview=True)
    config = dict(plan.config)

    def written(text: str) -> str:
        named: Mapping[str, object] = {
            **config,
            "model": {**config["model"], "_target_": f"a.{text.replace('.', '')}"},
        }
        return assemble(
            cut(plan, f"outputs/{text}_ejected"), describe(named, [f"notes={text}", f"tags=[{text}]"])
        )

    whole = without_texts(written("plain"), "plain")
    for text in trials.of(TEXTS, minimum=8):
        source = written(text)
        source.encode()
        assert without_texts(source, f"outputs/{text}_ejected") == whole.replace(
            "outputs/plain_ejected", ""
        ), text
        assert f"outputs/{text}_ejected" in [
            n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)
        ]


@pytest.mark.parametrize("name", ["x): print(1)", "lambda", "a b", "1a", "", "a\nb", "a=1, b"])
def test_a_key_is_a_name_or_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a name in a program"):
        layout.keyword(name, "1")


def test_a_program_that_is_no_python_is_not_written(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydrant.commands.eject.assemble.docstring", lambda text: "no python")
    with pytest.raises(ConfigError, match="eject: this config gives no program"):
        main(["--out=run.py"])
    assert not (workdir / "run.py").exists()


def test_a_link_is_not_followed(workdir: Path) -> None:
    (workdir / "run.py").symlink_to(workdir / "elsewhere")
    with pytest.raises(ConfigError, match=r"run\.py exists already"):
        main(["--out=run.py"])
    assert not (workdir / "elsewhere").exists()


@pytest.mark.parametrize("notes", ['notes=\'"""+print(1)+"""\'', "notes='C:\\New'", "notes='a\tb'"])
def test_the_overrides_are_in_the_docstring(notes: str) -> None:
    tree = ast.parse(program(check(compose([notes])), [notes]))
    assert notes.replace("\t", " ") in " ".join((ast.get_docstring(tree, clean=False) or "").split())
