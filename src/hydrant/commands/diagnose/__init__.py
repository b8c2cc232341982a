"""`hydrant diagnose`: find graph breaks, failures and wrong results of torch.compile for a config."""

from hydrant.commands.diagnose.command import main as main
