"""Fixtures of the tests of the examples."""

from data_files import published

__all__ = ["published"]
