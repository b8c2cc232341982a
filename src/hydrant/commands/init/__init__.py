"""`hydrant init`: a project of one's own, made from the files in `template/`."""

from hydrant.commands.init.command import main as main
