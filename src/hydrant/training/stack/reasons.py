"""Why runs cannot train as the lanes of one stack."""

from __future__ import annotations


class CannotStack(Exception):
    """The runs cannot train as lanes of one stack. The message names the part and why."""
