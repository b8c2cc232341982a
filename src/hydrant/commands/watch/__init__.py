"""`hydrant watch`: the comparison page, live."""

from hydrant.commands.watch.command import main

__all__ = ["main"]
