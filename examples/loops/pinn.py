"""Burgers' equation u_t + u u_x = 0.01/pi u_xx by a network, whose loss has its derivatives (Raissi et al., 2019)."""

import math

import torch
from torch import nn

from hydrant.batch import Outcome
from hydrant.tasks import Task


class Points:
    """Pairs of a point (t, x) inside, and one on the edge with the value that the solution has there."""

    def __init__(self, number, seed):
        inside, edge = torch.rand(2, number, 2, generator=torch.Generator().manual_seed(seed))
        edge[::2, 0] = 0  # the beginning
        edge[1::2, 1] = edge[1::2, 1].round()
        self.inside, self.edge = (
            points * torch.tensor([1.0, 2.0]) - torch.tensor([0.0, 1.0]) for points in (inside, edge)
        )
        self.values = -(math.pi * self.edge[:, 1]).sin() * (self.edge[:, 0] == 0)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return {"inside": self.inside[index], "edge": self.edge[index]}, self.values[index]


def make_model(width):
    return nn.Sequential(
        nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )


def losses(model, inputs, values):
    """Return the mean squares of what is left of the equation inside, and of the errors on the edge."""
    with torch.enable_grad():
        points = inputs["inside"].detach().requires_grad_()
        u = model(points)
        u_t, u_x = torch.autograd.grad(u.sum(), points, create_graph=True)[0].unbind(1)
        u_xx = torch.autograd.grad(u_x.sum(), points, create_graph=True)[0][:, 1]
        residual = u_t + u[:, 0] * u_x - 0.01 / math.pi * u_xx
    return {
        "equation": residual.square().mean(),
        "edge": (model(inputs["edge"])[:, 0] - values).square().mean(),
    }


class Pinn(Task):
    def forward(self, batch):
        return Outcome(losses(self.model, *batch), {}, (), batch.num_samples)


def plain_loop(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for inputs, values in batches:
        optimizer.zero_grad()
        sum(losses(model, inputs, values).values()).backward()
        optimizer.step()


if __name__ == "__main__":
    model, points = make_model(32), Points(256, seed=0)
    batch = {"inside": points.inside, "edge": points.edge}, points.values
    plain_loop(model, [batch] * 1000)
    print(losses(model, *batch))
