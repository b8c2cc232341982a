"""Secrets are hidden in texts and configs."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from hydrant.config.flat import differences
from hydrant.errors import shown
from hydrant.files.redaction import redacted, redacted_text

SECRETS = ["it's-a-secret", 'said "hello" now', r"back\slash\nine", "line one of it\nline two of it",
           "tab\tbetween words", "  padding-tested-1  ", "ünïcödé-pisswört", "a/b+c=d==efgh", "ctrl\x01char12",
           "日本語のひみつの言葉"]  # fmt: skip
QUOTED: list[Callable[[str], str]] = [
    str, repr,
    lambda s: repr(repr(s)), json.dumps, lambda s: json.dumps(s, ensure_ascii=False), shlex.quote,
    yaml.safe_dump, lambda s: yaml.safe_dump(s, allow_unicode=True), lambda s: quote(s, safe=""), lambda s: shown([s]),
    lambda s: " ".join(s.split()), lambda s: s.strip().splitlines()[0],
]  # fmt: skip
UNDER_A_KEY: list[Callable[[str], str]] = [
    lambda s: f"data.passwd: {s!r} is wrong", lambda s: f"data.passwd: needs a number, not {s!r}",
    lambda s: f"12:00 ERROR rank 1: data.auth: {s!r}", lambda s: f"optimizers.a.api_key: needs a number, not {[s]!r}",
    lambda s: f"passwd={s!r}", lambda s: repr(f"+data.passwd={s}"), lambda s: repr(repr(f"data.token={s}")),
    lambda s: repr([f"+data.passwd={s}", "seed=1"]), lambda s: shown({"token": s}), lambda s: str({"a": 1, "token": s}),
    lambda s: json.dumps({"token": s}), lambda s: shown({"credentials": {"user": "me", "x": s}}),
    lambda s: shown({"tokens": [s, s]}),
]  # fmt: skip


def leaked(secret: str, text: str) -> list[str]:
    """Return the words of a secret that are in a text."""
    return [
        word
        for word in (secret.strip(), *re.split(r"[^A-Za-z0-9]+", secret))
        if len(word) > 2 and word in text
    ]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("name", ["PGPASSWORD", "pgpassword", "my_api_key", "MYSQL_PWD", "DB_PASS", "ApiKey"])
def test_values_of_secret_variables_are_hidden_however_they_are_quoted(
    name: str, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, secret)
    for number, quoted in enumerate(QUOTED):
        text = redacted_text(f"got {quoted(secret)} here")
        assert not leaked(secret, text), (number, text)
        assert text.startswith("got"), text
        assert text.endswith("here"), text


@pytest.mark.parametrize("secret", SECRETS)
def test_values_under_secret_keys_are_hidden_however_they_are_quoted(secret: str) -> None:
    for number, message in enumerate(UNDER_A_KEY):
        assert not leaked(secret, redacted_text(message(secret))), (number, redacted_text(message(secret)))
    assert redacted([f"++data.passwd={secret}", "seed=1"]) == ["++data.passwd=***", "seed=1"]


@pytest.mark.parametrize(
    "text",
    [
        "class_token=true", "model.global_pool=token", "num_tokens=12", "reg_tokens: 4", "tracker.token: no such key",
        "ssh://git@host/data", "s3://bucket/data", "{token: null}", "key=optimizer.lr", "num_tokens=[1,2]",
        "secretary=x", "author=me", "authors: [a, b]", "keyboard: qwerty",
        "the bearer of a flag", "max_tokens: 4096",
    ],
)  # fmt: skip
def test_text_without_secrets_is_kept(text: str) -> None:
    assert redacted_text(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://ghp_0123456789abcdefghij@host/x", "https://***@host/x"),
        ("?a=1&X-Amz-Signature=0af&token=qq", "?a=1&X-Amz-Signature=***&token=***"),
        ("my.password='a b',seed=1", "my.password=***,seed=1"),
        ("+x={user: me, my_secret: abc}", "+x={user: me, my_secret: ***}"),
        ("https://me:p@ss@host/x https://you:q@host", "https://me:***@host/x https://you:***@host"),
        ("got Authorization: Bearer abc.def-1 and", "got Authorization: Bearer *** and"),
        ("{Authorization: Basic bWU6cHc=, x: 1}", "{Authorization: *** ***, x: 1}"),
        ("Bearer abcdefgh.ijkl failed", "Bearer *** failed"),
        ("x.auth=me:abc pwd=abc bearer=abc", "x.auth=*** pwd=*** bearer=***"),
        (
            "{apiKeys: [abc, def], hfToken: abc, my_tokens: abc}",
            "{apiKeys: ***, hfToken: ***, my_tokens: ***}",
        ),
        ("+my_tokens=[abc,def]", "+my_tokens=***"),
    ],
)
def test_secrets_in_text_are_hidden(text: str, expected: str) -> None:
    assert redacted_text(text) == expected


def test_variables_that_are_no_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hiding short values and paths would hide what a config needs."""
    monkeypatch.setenv("MY_KEY", "imagenet"[:7])
    monkeypatch.setenv("MY_TOKEN_FILE", str(tmp_path))
    monkeypatch.setenv("KEYBOARD", "a-long-layout-name")
    monkeypatch.setenv("KEY_PREFIX", "imagenet-train")
    monkeypatch.setenv("CREDENTIALS_HELPER", "a-long-helper-name")
    text = f"imagene {tmp_path} a-long-layout-name imagenet-train a-long-helper-name"
    assert redacted_text(text) == text


def test_a_secret_that_begins_with_another_is_hidden_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "abcdefgh")
    monkeypatch.setenv("B_TOKEN", "abcdefgh-the-rest")
    assert redacted_text("abcdefgh-the-rest abcdefgh") == "*** ***"


@pytest.mark.parametrize(
    "key",
    ["apiKeys", "api_keys", "hfToken", "my_tokens", "auth", "Authorization", "pwd", "bearer", "db.passwords"],
)
def test_values_of_secret_keys_are_hidden(key: str) -> None:
    assert redacted({key: "abc"}) == {key: "***"}
    assert redacted({key: ["abc"]}) == {key: ["***"]}


def test_hidden_values_are_equal() -> None:
    config = {"data": {"root": "a", "token": "x1"}, "seed": 0}
    assert differences(redacted(config), redacted({**config, "data": {"root": "a", "token": "x2"}})) == {}
