"""Regression: the losses of torch, and the coefficient of determination of a whole split."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import r2_score
from torch import nn
from torch.testing import assert_close

from hydrant.batch import Batch
from hydrant.errors import ConfigError
from hydrant.tasks import R2, Regression

LOSSES = {"mse": nn.MSELoss(), "mae": nn.L1Loss(), "huber": nn.HuberLoss(delta=0.5)}


def make_task(loss: Any = "mse", delta: float = 0.5) -> Regression:
    return Regression(nn.Identity(), loss=loss, delta=delta, metrics={})


@pytest.mark.parametrize("loss", [*LOSSES, nn.SmoothL1Loss()])
@pytest.mark.parametrize("shapes", [((6, 1), (6,)), ((6,), (6,)), ((6, 1), (6, 1)), ((6, 3), (6, 3))])
def test_the_loss_is_torch_s(loss: Any, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    outputs, targets = (torch.randn(shape) for shape in shapes)
    outcome = make_task(loss)(Batch(outputs, targets))
    reference = LOSSES[loss] if isinstance(loss, str) else loss
    assert torch.equal(outcome.total_loss(), reference(outputs.view(targets.shape), targets))
    for name in ("mse", "mae"):
        expected = LOSSES[name](outputs.view(targets.shape), targets)
        assert_close(outcome.measurements[name], expected)
    assert outcome.num_targets == targets.numel()
    assert outcome.predictions.shape == targets.shape


@pytest.mark.parametrize("loss", [nn.PoissonNLLLoss(), partial(F.poisson_nll_loss, full=True)])
def test_outputs_that_a_loss_takes_for_logarithms_are_refused(loss: Any) -> None:
    with pytest.raises(ConfigError, match=r"task\.loss\.log_input: true makes the outputs logarithms"):
        make_task(loss)
    outcome = make_task(nn.PoissonNLLLoss(log_input=False))(Batch(torch.ones(3), torch.ones(3)))
    assert outcome.measurements["mae"] == 0


@pytest.mark.parametrize(("outputs", "targets"), [((6, 3), (6,)), ((6,), (6, 2)), ((6, 2, 2), (6, 2))])
def test_shapes_are_never_broadcast(outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="a regression needs the same shape"):
        make_task()(Batch(torch.zeros(outputs), torch.zeros(targets)))


@pytest.mark.parametrize("shape", [(60,), (60, 3)])
@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_r2_is_that_of_all_batches_together(shape: tuple[int, ...], offset: float) -> None:
    targets = torch.randn(shape) + offset
    predictions, metric = targets + 0.3 * torch.randn(shape), R2()
    for start, stop in ((0, 7), (7, 50), (50, 60)):
        metric.update(predictions[start:stop], targets[start:stop])
    assert float(metric.compute()) == pytest.approx(
        r2_score(targets.double(), predictions.double()), rel=1e-6
    )
    metric.reset()
    metric.update(targets[:9], targets[:9])
    assert float(metric.compute()) == 1


@pytest.mark.parametrize(("error", "expected"), [(0.0, 1.0), (0.5, 0.0)])
def test_r2_of_equal_targets(error: float, expected: float) -> None:
    metric, targets = R2(), torch.full((5,), 0.1)
    metric.update(targets + error, targets)
    assert float(metric.compute()) == expected
