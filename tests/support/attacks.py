"""Attacks: many trials of one kind against a promise of docs/internals/reliability.md or docs/reference/security.md."""

import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

Case = TypeVar("Case")


class Trials:
    """Chooses the cases that a test tries and counts them: all of them, or a hundredth in the default tests."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.num_tried = 0

    def of(self, cases: Iterable[Case], minimum: int = 1) -> Iterator[Case]:
        """Yield the chosen cases, always the same ones, in their order."""
        everything = list(cases)
        num_chosen = min(len(everything), max(minimum, round(self.share * len(everything))))
        for idx in sorted(random.Random(0).sample(range(len(everything)), num_chosen)):
            self.num_tried += 1
            yield everything[idx]
