"""Small encodings of tiktoken that need no download: they divide text as published encodings do."""

from typing import Any
from unittest.mock import patch

import tiktoken
from tiktoken_ext import openai_public

PUBLISHED = ("gpt2", "cl100k_base", "o200k_base")

_PAIRS = (b" a", b"b ", b"\n\n", b".\n", b"\n/", b"  ", b"ab", b"a\n", "。".encode()[:2])
_RANKS = {bytes([byte]): byte for byte in range(256)} | {pair: 256 + n for n, pair in enumerate(_PAIRS)}
_SPECIAL = {"<|endoftext|>": len(_RANKS), "<|other|>": len(_RANKS) + 1}


def small_encoding(name: str) -> Any:
    """Return an encoding of all bytes and some pairs of them, with the pattern of a published encoding."""
    readers = ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks")
    with patch.multiple(
        openai_public, **dict.fromkeys(readers, lambda *_, **__: dict.fromkeys(range(50256)))
    ):
        pattern = openai_public.ENCODING_CONSTRUCTORS[name]()["pat_str"]
    return tiktoken.Encoding(
        f"small_{name}", pat_str=pattern, mergeable_ranks=_RANKS, special_tokens=_SPECIAL
    )
