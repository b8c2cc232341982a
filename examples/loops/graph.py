"""The classes of the nodes of one graph: a graph convolutional network (Kipf & Welling, 2017)."""

import torch
import torch.nn.functional as F
from torch import nn

NUM_NODES, NUM_CLASSES = 90, 3
CLASSES = torch.arange(NUM_NODES) % NUM_CLASSES


def make_graph():
    """Return the normalised adjacency matrix, (N, N): two nodes are more often joined if they are of one class."""
    generator = torch.Generator().manual_seed(0)
    is_likely = CLASSES[:, None] == CLASSES
    edges = torch.rand(NUM_NODES, NUM_NODES, generator=generator) < torch.where(is_likely, 0.2, 0.03)
    edges = (edges | edges.T | torch.eye(NUM_NODES, dtype=torch.bool)).float()
    scale = edges.sum(1).rsqrt()
    return scale[:, None] * edges * scale


class Nodes:
    """A data set of the numbers of nodes and their classes."""

    def __init__(self, first, last):
        self.nodes = range(first, last)

    def __len__(self):
        return len(self.nodes)

    def __getitem__(self, index):
        return self.nodes[index], CLASSES[self.nodes[index]]


class Gcn(nn.Module):
    """Computes all nodes, and gives the logits of those that are asked for."""

    def __init__(self, width, dropout):
        super().__init__()
        self.first, self.last = nn.Linear(NUM_NODES, width), nn.Linear(width, NUM_CLASSES)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("graph", make_graph())

    def forward(self, nodes):
        hidden = F.relu(self.graph @ self.first.weight.T + self.first.bias)  # each node is a feature
        return (self.graph @ self.last(self.dropout(hidden)))[nodes]


def plain_loop(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for nodes, classes in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(nodes), classes).backward()
        optimizer.step()


if __name__ == "__main__":
    model = Gcn(width=16, dropout=0.5)
    plain_loop(model, [(torch.arange(30), CLASSES[:30])] * 200)
    print((model.eval()(torch.arange(30, 90)).argmax(1) == CLASSES[30:]).float().mean())
