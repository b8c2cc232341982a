"""Texts of different lengths as dicts, padded with masks: a data set, a collate function and a model of a user."""

TEXTS = '''
import torch
from torch import nn
from torch.utils.data import Dataset

seen = []

class Texts(Dataset):
    """Sequences of different lengths, with ids up to 2**20."""

    def __init__(self, num=40, seed=0):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, 9, (num,), generator=generator)
        self.texts = [torch.randint(2**20, (int(n),), generator=generator) for n in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return {"ids": self.texts[index], "label": int(self.texts[index][0]) % 3}

def pad(samples):
    ids = nn.utils.rnn.pad_sequence([inputs["ids"] for inputs, _ in samples], batch_first=True, padding_value=-1)
    return {"ids": ids.clamp(min=0), "mask": ids >= 0}, torch.tensor([label for _, label in samples])

class Bag(nn.Module):
    """The mean of embeddings that depend on every bit of an id."""

    def __init__(self):
        super().__init__()
        self.bits = nn.Linear(20, 8)
        self.classes = nn.Linear(8, 3)

    def forward(self, inputs):
        ids, mask = inputs["ids"], inputs["mask"]
        seen.append((ids, mask))
        bits = (ids.unsqueeze(-1) >> torch.arange(20, device=ids.device) & 1).to(self.bits.weight.dtype)
        hidden = (self.bits(bits).tanh() * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return self.classes(hidden)
'''
"""The module `own_texts`. `seen` collects what the model has received."""

RECORD = "        seen.append((ids, mask))\n"
"""The line that does so."""

WORDS = ("data=dataset", "data.train._target_=own_texts.Texts", "data.val._target_=own_texts.Texts", "+data.val.seed=1",
         "data.target=label", "data.collate={_target_: own_texts.pad, _partial_: true}", "data.num_workers=0",
         "model=bag", "allow_targets=[own_texts]", "tracker=local", "global_batch_size=8", "duration=6", "log_every=1",
         "eval_every=3", "save_every=3")  # fmt: skip
"""The overrides of a run over these texts; the fixture `words` writes the module and the option of the model."""
