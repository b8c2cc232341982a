"""Hooks of a user, as the text of a module."""

HOOKS = '''
from pathlib import Path

import torch


class Recorder:
    """Writes each call into a file of the working folder."""

    def __init__(self, every=None):
        self.every = every
        self.on_gpu = False  # no method

    def note(self, *words):
        with Path("calls.txt").open("a") as file:
            print(*words, file=file)

    def on_start(self, trainer):
        self.note("on_start", trainer.state.num_updates)

    def before_update(self, trainer, num_updates):
        assert trainer.state.num_updates == num_updates - 1
        self.note("before_update", num_updates)

    def after_update(self, trainer, num_updates):
        assert trainer.state.num_updates == num_updates
        self.note("after_update", num_updates)

    def on_evaluation(self, trainer, row):
        assert 0 <= row["val/accuracy"] <= 1
        self.note("on_evaluation", row["num_updates"])

    def on_checkpoint(self, trainer, path):
        assert (path / "manifest.json").exists()
        self.note("on_checkpoint", path.name)

    def on_end(self, trainer):
        self.note("on_end", trainer.state.num_updates)


class Noise:
    """Adds random numbers of a generator of its own to the weights: what it does depends on its state."""

    def __init__(self, every=None):
        self.every = every
        self.generator = torch.Generator().manual_seed(0)
        self.num_calls = 0

    def after_update(self, trainer, num_updates):
        self.num_calls += 1
        for parameter in trainer.model.parameters():
            parameter.data += 0.01 * torch.randn(parameter.shape, generator=self.generator).to(parameter.device)
        trainer.log.row({"noise/num_calls": self.num_calls, "noise/next": torch.rand(1, generator=self.generator)})

    def state_dict(self):
        return {"generator": self.generator.get_state(), "num_calls": self.num_calls}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])
        self.num_calls = state["num_calls"]


class Logs:
    """Logs one of each kind in update 3, and numbers in update 5."""

    def after_update(self, trainer, num_updates):
        if num_updates == 3:
            trainer.log.text("poem", "one\\ntwo")
            trainer.log.table("notes", ["name", "value"], [["a", 1], ["b", 2.5]])
            trainer.log.picture("tensor", torch.rand(3, 6, 4))
            trainer.log.picture("drawn", lambda path: path.write_bytes(b"a picture"))
            trainer.log.text("t" * 300, "its folder cannot be made")
        if num_updates in (4, 5):
            trainer.log.row({"mine/number": 0})
            trainer.log.row({"mine/number": num_updates})


class Ends:
    """Ends the run after an update."""

    def __init__(self, at):
        self.at = at

    def after_update(self, trainer, num_updates):
        if num_updates == self.at:
            trainer.end(f"{num_updates} are enough")
            trainer.end("a second reason")


class LogsAfter:
    def __init__(self, end=-1):
        self.end = end

    def after_evaluation(self, trainer, row):
        trainer.log.row({"mine/after": trainer.state.num_updates})
        if trainer.state.num_updates == self.end:
            trainer.end("enough")


class EndsAtOnce:
    def on_evaluation(self, trainer, row):
        trainer.end("at once")


class Lightning:
    def on_train_epoch_end(self, trainer, module): ...


class NoHook:
    def update(self, trainer): ...


class FewArguments:
    def after_update(self, trainer): ...


class HalfState:
    def on_end(self, trainer): ...

    def state_dict(self):
        return {}


class BadMetric:
    def after_update(self, trainer, num_updates):
        trainer.log.row({"number": 1})


class Overwrites:
    """Logs a number under a name of the run."""

    def __init__(self, key):
        self.key = key

    def after_update(self, trainer, num_updates):
        trainer.log.row({self.key: 9.0})


class OddName:
    def after_update(self, trainer, num_updates):
        trainer.log.row({"mine/\\udc80\\x00": num_updates})
        if num_updates == 4:
            trainer.end("odd \\udc80")


class Raises:
    def after_update(self, trainer, num_updates):
        raise GeneratorExit


class Unwilling:
    def __init__(self, size=1):
        if size > 1:
            raise ValueError("size is too large")

    def check(self, plan):
        raise ValueError("this model is too small")
'''
