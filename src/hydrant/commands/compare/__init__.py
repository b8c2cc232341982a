"""`hydrant compare`: runs side by side, in a table, in groups over seeds, and on a page. Does not import torch."""

from hydrant.commands.compare.command import main as main
