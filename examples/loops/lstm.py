"""A language model whose LSTM state goes on from update to update: truncated back-propagation through time."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hydrant.batch import Outcome
from hydrant.tasks import Task

LANES, LENGTH, NUM_TOKENS = 8, 5, 12


def text():
    """A text in lanes, (LANES, 33): 6 pieces of LENGTH tokens in each, and one of 2."""
    numbers = torch.randint(0, 7, (LANES * 33,), generator=torch.Generator().manual_seed(0))
    return (numbers.cumsum(0) % NUM_TOKENS).view(LANES, 33)


class Pieces(IterableDataset):
    """The pieces of the text, update by update: each goes on where the one before it in its lane ended."""

    num_samples = LANES * 7

    def __init__(self):
        self.text, self.position = text(), 0

    def __iter__(self):
        while self.position < self.num_samples:
            step, lane = divmod(self.position, LANES)
            tokens = self.text[lane, step * LENGTH : step * LENGTH + LENGTH + 1]
            self.position += 1
            yield (tokens[:-1], step == 0), tokens[1:]
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def lanes():
    """Each lane as one sample, for evaluation."""
    return TensorDataset(text()[:, :-1], text()[:, 1:])


class WordModel(nn.Module):
    """Tokens (B, L) and the state (h, c), (B, layers, width) each, give logits and the state after them."""

    def __init__(self, width):
        super().__init__()
        self.embed, self.lstm = (
            nn.Embedding(NUM_TOKENS, width),
            nn.LSTM(width, width, num_layers=2, batch_first=True),
        )
        self.read = nn.Linear(width, NUM_TOKENS)

    def forward(self, tokens, state=None):
        state = None if state is None else tuple(part.transpose(0, 1).contiguous() for part in state)
        hidden, state = self.lstm(self.embed(tokens), state)
        return self.read(hidden), tuple(part.transpose(0, 1) for part in state)


class WordTask(Task):
    def forward(self, batch):
        tokens, begins = batch.inputs if isinstance(batch.inputs, list | tuple) else (batch.inputs, None)
        state = self.carried
        if state is not None:  # it is 0 where a piece begins its lane
            state = tuple(part.where(~begins[:, None, None], 0) for part in state)
        logits, state = self.model(tokens, state)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        return Outcome({"loss": loss}, {}, logits.detach(), batch.targets.numel(), state)


def plain_loop(model, batches):
    """Train as the example `word_language_model` of PyTorch."""
    optimizer, state = torch.optim.SGD(model.parameters(), lr=2.0), None
    for (tokens, begins), targets in batches:
        state = None if begins.all() else tuple(part.detach() for part in state)
        optimizer.zero_grad()
        logits, state = model(tokens, state)
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()


if __name__ == "__main__":
    model, pieces = WordModel(width=10), DataLoader(Pieces(), batch_size=LANES)
    for _ in range(50):
        plain_loop(model, pieces)
    tokens, targets = lanes().tensors
    print(F.cross_entropy(model(tokens)[0].flatten(0, 1), targets.flatten()))
