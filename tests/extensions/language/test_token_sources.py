"""Tokens are read like the samples of every source."""

from pathlib import Path

import numpy as np
import pytest
from stream_properties import *  # noqa: F403
from token_folders import write_bin

from hydrant.data import Source
from hydrant.extensions.language.token_data import TokenShards, TokenSource
from hydrant.extensions.language.token_files import token_files


@pytest.fixture(params=["windows", "documents"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    """25 sequences of 4 tokens in two files, the second of which begins within a sequence."""
    tokens = np.random.default_rng(0).integers(0, 9, 102)
    files = [write_bin(tmp_path / f"{n}.bin", part) for n, part in enumerate(np.split(tokens, [42]))]
    shards = TokenShards(
        [file for path in files for file in token_files("", str(path), "uint16", "data.train")]
    )
    return TokenSource(shards, 4, 9, request.param, 0, "end", range(25))
