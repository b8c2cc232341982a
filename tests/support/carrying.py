"""Programs that carry a state from batch to batch, and the plain loops of their authors."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from hydrant.batch import Batch, Outcome
from hydrant.tasks import Task

LANES, LENGTH = 8, 5


def text() -> Tensor:
    """A text in lanes, (LANES, 33): 6 pieces of LENGTH tokens in each, and one of 2."""
    numbers = torch.randint(0, 7, (LANES * 33,), generator=torch.Generator().manual_seed(0))
    return (numbers.cumsum(0) % 12).view(LANES, 33)


class Pieces:
    """The pieces of a text in lanes, update by update: each goes on where the one before it in its lane ended."""

    def __init__(self) -> None:
        self.text, self.position = text(), 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < LANES * 7:
            step, lane = divmod(self.position, LANES)
            tokens = self.text[lane, step * LENGTH : step * LENGTH + LENGTH + 1]
            self.position += 1
            yield (tokens[:-1], step == 0), tokens[1:]
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def lanes() -> TensorDataset:
    """Each lane of the text as one sample: its loss is that of the whole lane."""
    return TensorDataset(text()[:, :-1], text()[:, 1:])


class WordModel(nn.Module):
    """Tokens (B, L) and the state (h, c), (B, layers, width) each, give logits and the state after them."""

    def __init__(self, input_shape: Any, num_classes: int) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(num_classes, 6), nn.LSTM(6, 10, num_layers=2, batch_first=True)
        self.read = nn.Linear(10, num_classes)

    def forward(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        state = None if state is None else tuple(part.transpose(0, 1).contiguous() for part in state)
        hidden, state = self.lstm(self.embed(tokens), state)
        return self.read(hidden), tuple(part.transpose(0, 1) for part in state)


class WordTask(Task):
    """Truncated back-propagation through time; the state is 0 where a piece begins its lane."""

    def forward(self, batch: Batch) -> Outcome:
        tokens, begins = batch.inputs if isinstance(batch.inputs, list | tuple) else (batch.inputs, None)
        state = self.carried
        if state is not None:
            state = tuple(part.where(~begins[:, None, None], 0) for part in state)
        logits, state = self.model(tokens, state)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        return Outcome({"loss": loss}, {}, logits.detach(), batch.targets.numel(), state)


def train_words(model: WordModel, num_updates: int) -> Tensor:
    """Train as PyTorch's word language model does; return the loss of the whole text, shape ()."""
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    source, state = text().T, None  # (L, LANES)
    for n in range(num_updates):
        start = n % 7 * LENGTH
        state = None if start == 0 else tuple(part.detach() for part in state or ())
        piece = source[start : start + LENGTH + 1]
        optimizer.zero_grad()
        hidden, state = model.lstm(model.embed(piece[:-1].T), state)
        F.cross_entropy(model.read(hidden).flatten(0, 1), piece[1:].T.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    logits = model.read(model.lstm(model.embed(source[:-1].T))[0])
    return F.cross_entropy(logits.flatten(0, 1), source[1:].T.flatten()).detach()


def make_encoders(input_shape: Any, num_classes: int) -> nn.ModuleDict:
    """The encoder of queries, and that of keys with the same first weights, which no gradient changes."""
    query, key = (nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in "qk")
    key.load_state_dict(query.state_dict())
    return nn.ModuleDict({"query": query, "key": key.requires_grad_(False)})


class Moco(Task):
    """MoCo (He et al., 2020): the other keys of a query are those of the last batches, in a queue."""

    queue: Tensor

    def __init__(self, model: nn.Module, *, metrics: Any) -> None:
        super().__init__(model, metrics)
        self.register_buffer("queue", F.normalize(torch.arange(320.0).view(40, 8).sin(), dim=1))

    def forward(self, batch: Batch) -> Outcome:
        loss, keys = contrast(self.model, batch.inputs, self.queue)
        return Outcome({"loss": loss}, {}, keys, len(keys), keys)

    def end_update(self, carried: Tensor) -> None:
        self.queue.copy_(torch.cat([carried, self.queue])[: len(self.queue)])
        follow(self.model)


def contrast(encoders: Any, images: Tensor, queue: Tensor) -> tuple[Tensor, Tensor]:
    queries = F.normalize(encoders["query"](images), dim=1)
    with torch.no_grad():
        keys = F.normalize(encoders["key"](images.flip(-1)), dim=1)
    logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ queue.T], dim=1) / 0.2
    return F.cross_entropy(logits, torch.zeros(len(images), dtype=torch.long)), keys


def follow(encoders: Any) -> None:
    """Move the encoder of keys towards that of queries."""
    for key, query in zip(encoders["key"].parameters(), encoders["query"].parameters(), strict=True):
        key.data.mul_(0.9).add_(query.data, alpha=0.1)


def train_moco(task: Moco, stream: Any, num_updates: int) -> None:
    """Train as the program of the authors does."""
    optimizer = torch.optim.SGD(task.model["query"].parameters(), lr=0.5)
    for n in range(num_updates):
        (batch,) = stream.micro_batches(n)
        if n:
            follow(task.model)
        loss, keys = contrast(task.model, batch.inputs, task.queue)
        task.queue = torch.cat([keys, task.queue])[: len(task.queue)]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    follow(task.model)
