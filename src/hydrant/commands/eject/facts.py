"""Facts about the parts of a run that are not values of names."""

from __future__ import annotations


class _Something:
    """Stands for an object that is not None. Everything else about it is unknown."""

    def __repr__(self) -> str:
        return "something"

    def __bool__(self) -> bool:
        raise TypeError("unknown")

    def __eq__(self, other: object) -> bool:
        raise TypeError("unknown")

    def __hash__(self) -> int:
        return 0


SOMETHING = _Something()

IDLE = "idle layers"
"""The key, among what is known of a class, of its layers that return what they get. No argument has this name."""

ABSENT = "absent arguments"
"""The key, among what is known of a class, of the arguments of its methods that are always None."""
