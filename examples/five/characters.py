"""A language model of bytes."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset


class Text(Dataset):
    """Pieces of a text: `length` bytes, and as targets the byte that follows each of them."""

    def __init__(self, path, begin, end, length):
        text = Path(path).read_bytes()
        self.text = torch.tensor(list(text[int(begin * len(text)) : int(end * len(text))]))
        self.length = length

    def __len__(self):
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index):
        piece = self.text[index * self.length :][: self.length + 1]
        return piece[:-1], piece[1:]


class CharacterModel(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, 256))

    def forward(self, text):  # (B, T) -> (B, T, 256)
        return self.classifier(self.memory(self.embedding(text))[0])


def write(model, length):
    """Continue a text; hook=samples calls this after each evaluation."""
    text = torch.tensor([list(b"The ")], device=next(model.parameters()).device)
    for _ in range(length):
        next_byte = model(text)[:, -1].softmax(dim=-1).multinomial(1)
        text = torch.cat([text, next_byte], dim=1)
    return {"text": bytes(text[0].tolist()).decode(errors="replace")}
