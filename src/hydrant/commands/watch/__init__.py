"""`hydrant watch`: the comparison page, live."""

from hydrant.commands.watch.command import main as main
