"""A polynomial is found from endless random points, until the loss is small (the example `regression` of PyTorch)."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn

COEFFICIENTS = torch.tensor([2.0, -1.0, 3.0, 0.5])


def make_points(count):
    """Return the powers of random numbers, (count, 4), and the values of the polynomial, (count, 1)."""
    powers = torch.randn(count, 1) ** torch.arange(1, 5)
    return powers, powers @ COEFFICIENTS[:, None] + 1.0


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
    print(plain_loop(nn.Linear(4, 1), (make_points(32) for _ in itertools.count())))
