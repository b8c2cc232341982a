"""A tag for each word of a sentence."""

import json
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence


class Sentences(torch.utils.data.Dataset):
    """The lines of a file, such as {"words": ["at", "12"], "tags": [0, 1]}."""

    def __init__(self, path):
        self.lines = [json.loads(line) for line in Path(path).read_text().splitlines()]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        words, tags = self.lines[index]["words"], self.lines[index]["tags"]
        return torch.tensor([zlib.crc32(word.encode()) % 1000 for word in words]), torch.tensor(tags)


def pad(samples):
    words, tags = zip(*samples, strict=True)
    padded = pad_sequence(words, batch_first=True, padding_value=-1)
    inputs = {"words": padded.clamp(min=0), "mask": padded >= 0}
    return inputs, pad_sequence(tags, batch_first=True, padding_value=-100)


class Tagger(nn.Module):
    def __init__(self, num_classes, width, dropout):
        super().__init__()
        self.words, self.positions = nn.Embedding(1000, width), nn.Embedding(50, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(width, num_classes)

    def forward(self, inputs):  # (B, T) -> (B, T, num_classes)
        words, mask = inputs["words"], inputs["mask"]
        x = self.words(words) + self.positions(torch.arange(words.shape[1], device=words.device))
        return self.classifier(self.encoder(x, src_key_padding_mask=~mask))
