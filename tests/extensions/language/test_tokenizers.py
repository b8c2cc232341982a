"""Tokenizers, and the places where they can cut text."""

import random
from collections.abc import Callable

import pytest
from encodings_of_tiktoken import PUBLISHED, small_encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from hydrant.errors import ConfigError
from hydrant.extensions.language.tokenizers import BytesTokenizer, CharTokenizer, TiktokenTokenizer, Tokenizer

ALPHABET = "ab1A. \n\r\t/'s。é字\u3000"
TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": BytesTokenizer,
    "char": lambda: CharTokenizer(ALPHABET),
    **{name: lambda name=name: TiktokenTokenizer(small_encoding(name)) for name in PUBLISHED},
}


@pytest.fixture(params=TOKENIZERS, scope="module")
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


@settings(max_examples=150, deadline=None)
@given(text=st.text(ALPHABET, max_size=40))
def test_a_text_is_decoded_as_it_was_and_its_bytes_are_counted(tokenizer: Tokenizer, text: str) -> None:
    ids, vocabulary = list(tokenizer.encode(text)), tokenizer.vocabulary
    assert tokenizer.decode(ids) == text
    assert sum(vocabulary.token_bytes[token] for token in ids) == len(text.encode())
    assert len(vocabulary.token_bytes) == vocabulary.size > max([vocabulary.separator, *ids])


@settings(max_examples=400, deadline=None)
@given(text=st.text(ALPHABET, max_size=40), size=st.integers(1, 40))
def test_the_parts_of_a_cut_text_have_its_tokens(tokenizer: Tokenizer, text: str, size: int) -> None:
    cut = tokenizer.last_cut(text[:size])
    assert [*tokenizer.encode(text[:cut]), *tokenizer.encode(text[cut:])] == list(tokenizer.encode(text))


def test_a_text_of_words_can_be_cut(tokenizer: Tokenizer) -> None:
    words = "".join(random.Random(0).choices(ALPHABET, k=5000))
    assert tokenizer.last_cut(words + "ab" * 5000) > 4900
    assert tokenizer.last_cut("") == 0


def test_separators_have_no_bytes_and_are_shown(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.vocabulary
    assert vocabulary.token_bytes[vocabulary.separator] == 0
    assert tokenizer.decode([*tokenizer.encode("a"), vocabulary.separator]) == "a<|endoftext|>"


def test_special_tokens_in_a_text_are_text() -> None:
    tokenizer = TiktokenTokenizer(small_encoding("gpt2"))
    ids = tokenizer.encode("<|endoftext|>")
    assert tokenizer.vocabulary.separator not in ids
    assert tokenizer.decode([*ids, 10**6]) == "<|endoftext|>"  # an id that only the model has


def test_a_character_that_does_not_occur_has_no_token() -> None:
    with pytest.raises(ConfigError, match="no token stands for 'z'"):
        CharTokenizer("abc").encode("abz")


def test_an_unknown_encoding_is_refused_with_those_that_exist() -> None:
    message = r"--encoding: 'gpt17' cannot be loaded .* bytes, char, .*cl100k_base"
    with pytest.raises(ConfigError, match=message):
        TiktokenTokenizer.named("gpt17", "--encoding")
