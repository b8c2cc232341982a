"""`hydrant bench`: compare precisions and compile settings, each measured in fresh processes."""

from hydrant.commands.bench.command import main as main
