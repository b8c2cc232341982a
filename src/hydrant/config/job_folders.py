"""The folder names of a sweep's jobs, made from their overrides, and the folders that earlier commands gave them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from hydrant.config.flat import is_neutral
from hydrant.files.redaction import HIDDEN, redacted

_NO_FOLDERS: Mapping[str, Sequence[str]] = MappingProxyType({})

_MAX_BYTES = 120

_Identity = tuple[str, ...]
"""The identity of a job: its overrides that have an effect on the result, sorted, without secrets."""


class JobFolders:
    """Gives each job of a sweep the folder with its overrides, else a new folder, which `job_slug` names.

    So a job keeps its folder if a later command varies other keys, and no job gets the folder of another one.

    Args:
        swept: the keys that the sweep varies.
        existing: the overrides of the job in each folder of the sweep.
    """

    def __init__(
        self, swept: Collection[str] = (), existing: Mapping[str, Sequence[str]] = _NO_FOLDERS
    ) -> None:
        self._swept = swept
        self._jobs = {
            name: _identity(_words(overrides, swept), name[-9:]) for name, overrides in existing.items()
        }
        self._names: dict[_Identity, list[str]] = {}
        for name, job in self._jobs.items():
            self._names.setdefault(job, []).append(name)

    def name_of(self, overrides: Sequence[str]) -> str:
        """Return the folder name of the job with these overrides."""
        words = _words(overrides, self._swept)
        job, slug = _identity(words, _digest(words)), job_slug(overrides, self._swept)
        names = self._names.setdefault(job, [])
        if len(names) == 1:
            return names[0]
        if self._jobs.setdefault(slug, job) != job:  # the overrides of another job are written alike
            slug = f"{shortened(slug, _MAX_BYTES - 10)}{_digest(words)}"
            self._jobs[slug] = job
        if slug not in names:
            names.append(slug)
        return slug


def job_slug(overrides: Sequence[str], swept: Collection[str] = ()) -> str:
    """Return a folder name made from the overrides of a job: first those that the sweep varies.

    Secrets only enter a hash. Keys that have no effect on the result appear only if they are in `swept`.

    >>> job_slug(["data=mnist", "name=study", "tracker=local", "optimizer.lr=1e-3"], ["optimizer.lr"])
    'optimizer.lr-1e-3_data-mnist'
    """
    words = _words(overrides, swept)
    if not words:
        return "defaults"
    ordered = redacted(sorted(words, key=lambda word: _key(word) not in swept))
    text = "_".join(map(_written, words))
    slug, is_whole = _as_name(ordered), _as_name(redacted(words)) == text.replace("=", "-")
    if is_whole and len(slug.encode()) <= _MAX_BYTES:
        return slug
    short = _as_name([re.sub(r"^[^=]*\.", "", word) for word in ordered])
    return f"{shortened(short, _MAX_BYTES - 10)}{_digest(words)}"


def _words(overrides: Sequence[str], swept: Collection[str]) -> list[str]:
    """Return the overrides that make the job, sorted. `+key=1` and `key=1` give the same config, `~key` does not."""
    words = (override.lstrip("+") for override in overrides)
    return sorted(word for word in words if _key(word) in swept or not _is_left_out(_key(word)))


def _key(word: str) -> str:
    return word.lstrip("~").partition("=")[0]


def _is_left_out(key: str) -> bool:
    return key == "sweep" or is_neutral(key)


def _identity(words: Sequence[str], digest: str) -> _Identity:
    """Return the identity of a job. The hash at the end of folder names separates jobs that differ in a secret."""
    public = tuple(redacted(list(words)))
    return (*public, digest) if any(HIDDEN in word for word in public) else public


def _digest(words: Sequence[str]) -> str:
    return f"-{hashlib.sha1('_'.join(words).encode()).hexdigest()[:8]}"


def _written(word: str) -> str:
    return f"without-{word[1:]}" if word.startswith("~") else word


def _as_name(words: Sequence[str]) -> str:
    return re.sub(r"[^\w.%+-]", "-", "_".join(map(_written, words)))


def shortened(name: str, num_bytes: int) -> str:
    """Return the beginning of a file name. File systems count bytes, and a character may have four.

    >>> shortened("größer", 4)
    'grö'
    """
    return name.encode()[:num_bytes].decode(errors="ignore")
