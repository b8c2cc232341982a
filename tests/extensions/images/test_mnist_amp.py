"""experiment=mnist_amp equals a plain PyTorch loop with autocast and GradScaler, on files in MNIST's format."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from run_folders import assert_same_state, weights
from training_runs import Train

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.training.prepare.build import prepare

SMALL = ("global_batch_size=4", "precision.init_scale=1024.0", "data.download=false", "tracker=local")


@pytest.mark.parametrize("published", ["mnist"], indirect=True)
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("step_size", ["2", pytest.param("3ep", marks=pytest.mark.slow)])
def test_equals_the_plain_loop_bit_for_bit(
    published: Any, precision: str, step_size: str, train: Train, tmp_path: Path
) -> None:
    words = ("experiment=mnist_amp", f"precision={precision}", f"scheduler.step_size={step_size}",
             f"data.root={tmp_path / 'data'}", *SMALL)  # fmt: skip
    folder = train(*words)
    p = prepare(check(compose(words)))
    device, total = p.world.device, p.clock.total_updates
    model = p.task.to(device).model
    assert [tuple(parameter.shape) for parameter in model.parameters()] == [(10, 28 * 28), (10,)]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    size = p.clock.updates(step_size, "step_size")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.1 ** (n // size))
    half = precision == "fp16"
    scaler, stream = (
        torch.amp.GradScaler(device.type, init_scale=1024.0, enabled=half),
        p.data.train.stream(p.spec),
    )
    for n in range(total):
        (batch,) = stream.micro_batches(n)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16, enabled=half):
            loss = F.cross_entropy(model(batch.inputs).float(), batch.targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    assert total >= 2 * size or step_size == "3ep"
    assert_same_state({name: value.cpu() for name, value in model.state_dict().items()}, weights(folder))
