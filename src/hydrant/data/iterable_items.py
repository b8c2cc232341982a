"""Items that can only be read in their order, and the position in them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from hydrant import seeding
from hydrant.data.workers import preserve_rngs, seed_rngs
from hydrant.errors import ConfigError, DataError, HydrantError, OutOfMemory, location, typed_line


class IterableItems:
    """An iterable of the user's. `key` names it in messages.

    If it has `state_dict` and `load_state_dict`, these give and restore the position.

    Raises:
        ConfigError: it is not iterable, or is an iterator, which cannot begin again, without a state.
    """

    def __init__(self, items: Any, key: str) -> None:
        if not hasattr(items, "__iter__"):
            message = f"a {type(items).__name__} cannot be iterated; an object with __iter__ is needed"
            raise ConfigError(key, message)
        self._items, self.key = items, key
        self.has_state = hasattr(items, "state_dict") and hasattr(items, "load_state_dict")
        if not self.has_state and isinstance(items, Iterator):
            message = f"a {type(items).__name__} cannot begin again; __iter__ must return a new iterator"
            raise ConfigError(key, message)
        self.first_state = self.state()
        self.num_readings = 0  # how often this process has begun to read

    def state(self) -> Any:
        """Return a copy of the position after the items that were read; None if there is no state."""
        return copy.deepcopy(self._items.state_dict()) if self.has_state else None

    def rewind(self) -> None:
        """Go back to the first position of the items, if they have a state."""
        if self.has_state:
            self._items.load_state_dict(copy.deepcopy(self.first_state))

    def first(self, count: int) -> list[Any]:
        """Return the first items of a pass, or all if there are fewer."""
        with preserve_rngs():
            items = self._seeded(self._restarted(self.first_state), seed=0, start=0)
            return list(itertools.islice(items, count))

    def endless(self, state: Any, *, seed: int, start: int) -> Iterator[Any]:
        """Yield items from a position on; without a state from the beginning. When a pass ends, the next one begins.

        The random numbers that an item draws are a function of the seed and the number of the item, which counts from
        `start` on.

        Raises:
            DataError: an item cannot be read, or there are none.
        """
        return self._seeded(self._passes(state), seed=seed, start=start)

    def _restarted(self, state: Any) -> Iterator[Any]:
        self.num_readings += 1
        if self.has_state:
            self._items.load_state_dict(copy.deepcopy(state))
        yield from self._items

    def _passes(self, state: Any) -> Iterator[Any]:
        items, num_empty = self._restarted(state), 0
        while num_empty < 2:  # from a position at the end of a pass, the rest of it is empty
            num_empty += 1
            for item in items:
                num_empty = 0
                yield item
            items = iter(self._items)
        raise DataError(f"{self.key} gives no items")

    def _seeded(self, items: Iterator[Any], *, seed: int, start: int) -> Iterator[Any]:
        for number in itertools.count(start):
            seed_rngs(seeding.hash_of(seed, seeding.SAMPLE, number))
            name = f"item {number} of {self.key}"
            try:
                item = next(items)
            except StopIteration:
                return
            except HydrantError:  # it says what is wrong
                raise
            except MemoryError as error:
                message = f"there is no memory left to read {name}; lower global_batch_size"
                raise OutOfMemory(message) from error
            except Exception as error:  # a user's iterable raises anything
                message = f"{name} cannot be read: {typed_line(error)} (at {location(error)})"
                raise DataError(message) from error
            yield item
