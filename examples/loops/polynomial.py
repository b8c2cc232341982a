"""A polynomial is found from endless random points, until the loss is small (the example `regression` of PyTorch)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

COEFFICIENTS = torch.tensor([2.0, -1.0, 3.0, 0.5])


class Points(IterableDataset):
    """Endless powers of a random number, (4,), and the value of the polynomial, (1,)."""

    def __init__(self, seed=0):
        self.seed, self.position = seed, 0

    def __iter__(self):
        while True:
            generator = torch.Generator().manual_seed(1_000_000 * self.seed + self.position)
            self.position += 1
            powers = torch.randn(1, generator=generator) ** torch.arange(1, 5)
            yield powers, powers @ COEFFICIENTS[:, None] + 1.0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def plain_loop(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for powers, values in batches:
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(model(powers), values)
        loss.backward()
        optimizer.step()
        if loss < 1e-3:
            break
    return loss.item()


if __name__ == "__main__":
    print(plain_loop(nn.Linear(4, 1), DataLoader(Points(), batch_size=32)))
