"""Layers that learn one by one, without a backward pass through all (Hinton, "The forward-forward algorithm", 2022)."""

import torch
import torch.nn.functional as F
from torch import nn

from hydrant.batch import Outcome
from hydrant.tasks import Task

THRESHOLD = 0.5


class Layer(nn.Linear):
    def forward(self, inputs):
        return super().forward(F.normalize(inputs)).relu()


def make_model(width):
    return nn.Sequential(Layer(64, width), Layer(width, width))


def with_label(images, labels):
    """Return the pixels, (B, 64), the first ten of which are the label."""
    pixels = images.flatten(1).clone()
    pixels[:, :10] = F.one_hot(labels, 10)
    return pixels


def layer_losses(model, images, labels):
    """Return the loss of each layer: outputs are to be large for the right label, and small for another one."""
    right, wrong = (
        with_label(images, labels),
        with_label(images, (labels + torch.randint_like(labels, 1, 10)) % 10),
    )
    losses = []
    for layer in model:
        right, wrong = layer(right.detach()), layer(wrong.detach())
        goodness = torch.cat([THRESHOLD - right.square().mean(1), wrong.square().mean(1) - THRESHOLD])
        losses.append(F.softplus(goodness).mean())
    return losses


def predict(model, images):
    every = torch.arange(10, device=images.device)[:, None].expand(10, len(images))
    goodness = [
        sum(x.square().mean(1) for x in outputs(model, with_label(images, labels))) for labels in every
    ]
    return torch.stack(goodness).argmax(0)


def outputs(model, pixels):
    for layer in model:
        pixels = layer(pixels)
        yield pixels


class ForwardForward(Task):
    best_metric = "val/accuracy"

    def forward(self, batch):
        losses = {f"layer_{n}": loss for n, loss in enumerate(layer_losses(self.model, *batch))}
        accuracy = {} if self.training else {"accuracy": predict(self.model, batch.inputs) == batch.targets}
        return Outcome(losses, accuracy, (), batch.num_samples)


def plain_loop(model, batches):
    optimizers = [torch.optim.Adam(layer.parameters(), lr=0.03) for layer in model]
    for images, labels in batches:
        for optimizer, loss in zip(optimizers, layer_losses(model, images, labels), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    from sklearn.datasets import load_digits

    images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    images, model = images.float() / 16, make_model(width=256)
    plain_loop(model, [(images[i : i + 64], labels[i : i + 64]) for i in range(0, 1437, 64)] * 30)
    print((predict(model, images[1437:]) == labels[1437:]).float().mean())
