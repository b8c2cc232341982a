"""Write command lines as a person writes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable


def shell_line(words: Iterable[str]) -> str:
    """Return words as a line for a shell. A word with single quotes stands in double quotes where that is possible.

    >>> print(shell_line(["train", "notes='a b'", "model.hidden=[16]"]))
    train "notes='a b'" 'model.hidden=[16]'
    """
    return " ".join(
        f'"{word}"' if "'" in word and not re.search(r'["$`\\\\!\n]', word) else shlex.quote(word)
        for word in words
    )
