"""The loop of timm's training script with `--amp --amp-dtype bfloat16 --torchcompile`.

The script is in timm's repository, not in its package, so the loop is written here with the package's own parts: its
optimizer factory and its meters, which read the loss after every update, as in timm 1.0.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter
from torch import nn

from benchmarks.contenders.work import DEVICE, LR, TURNS, batches, digest, network


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.benchmark = True
    model = network().train()
    adamw = create_optimizer_v2(model, opt="adamw", lr=LR, weight_decay=0.01, filter_bias_and_bn=False)
    compiled = torch.compile(model)
    criterion, autocast = nn.CrossEntropyLoss(), partial(torch.autocast, DEVICE.type, dtype=torch.bfloat16)
    losses, seconds, start = AverageMeter(), AverageMeter(), time.time()
    for inputs, targets in TURNS.over(batches()):
        with autocast():
            loss = criterion(compiled(inputs), targets)
        loss.backward()
        adamw.step()
        losses.update(loss.item(), inputs.size(0))
        adamw.zero_grad()
        seconds.update(time.time() - start)
        start = time.time()
    TURNS.end(digest=digest(model))


main()
