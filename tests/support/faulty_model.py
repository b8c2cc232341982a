"""A model that fails on one rank of two, and the overrides of a run with it."""

import sys
from pathlib import Path

MODULE = """
import os, signal, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn

destroy_process_group, leave = dist.destroy_process_group, os._exit

def destroy_with_all_ranks(*groups):
    '''As NCCL: wait until all ranks destroy the group, and so forever after an error of one of them.'''
    if not groups:
        time.sleep(1000)
    destroy_process_group(*groups)

def leave_first(status):
    end = time.monotonic() + 20
    while not Path("leaving").exists() and time.monotonic() < end:
        time.sleep(0.01)
    leave(status)

def leave_last(status):
    signal.signal(signal.SIGTERM, lambda *_: leave(status))  # the launcher sends it when the other rank has left
    Path("leaving").touch()
    time.sleep(3)
    leave(status)

def destroy_last(*groups):
    if not groups:
        Path("leaving").touch()
        time.sleep(3)
    destroy_process_group(*groups)

class Net(nn.Module):
    '''Fails in a training forward on one rank, once per folder.'''

    def __init__(self, *, fault, rank, input_shape, num_classes):
        super().__init__()
        self.linear = nn.Linear(input_shape[1] * input_shape[2], num_classes)
        self.fault, self.is_faulty, self.num_calls = fault, os.environ.get("RANK") == str(rank), 0
        if fault in ("raise", "refuse"):  # the faulty rank exits first; the launcher then sends SIGTERM to the other
            dist.destroy_process_group = destroy_with_all_ranks
            os._exit = leave_last if not self.is_faulty else leave_first if fault == "refuse" else leave
        if fault == "refuse":
            raise ValueError("boom")

    def forward(self, inputs):
        self.num_calls += torch.is_grad_enabled()
        if self.is_faulty and self.num_calls == 5 and torch.is_grad_enabled() and not Path("done").exists():
            Path("done").touch()
            match self.fault:
                case "sleep":
                    time.sleep(1000)
                case "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "poison":
                    inputs = inputs * float("nan")
                case "raise":
                    raise ValueError("boom")
                case "exit":
                    os._exit(3)
        return self.linear(inputs.flatten(1))
"""

TWO_RANKS = ("parallel.num_processes=2",)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
_WORDS = ("tracker=local", "duration=8", "log_every=2", "eval_every=8", "save_every=2", "keep_last=9",
          "model._target_=faulty.Net", "~model.hidden", "~model.dropout", "allow_targets=[faulty]",
          "name=run")  # fmt: skip


def provide_faulty_model(folder: Path) -> tuple[str, ...]:
    """Write the module `faulty` into a folder; return the overrides of a run with it, without the fault."""
    (folder / "faulty.py").write_text(MODULE)
    return _WORDS


def fault(kind: str, rank: int) -> tuple[str, str]:
    """Return the overrides for a fault (sleep, stop, poison, raise, exit, refuse, none) on a rank."""
    return f"+model.fault={kind}", f"+model.rank={rank}"
