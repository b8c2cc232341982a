"""A process group of one rank, which a CheckpointManager needs."""

from collections.abc import Iterator

import pytest

from hydrant.training.distributed.world import World


@pytest.fixture
def process_group() -> Iterator[None]:
    with World.from_launcher().process_group():
        yield
