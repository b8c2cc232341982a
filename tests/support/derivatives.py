"""Programs with second derivatives or closures, as a user writes them, and their plain loop."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome
from hydrant.errors import ConfigError
from hydrant.tasks import Task

NUM_UPDATES, LR = 4, 0.05
POINTS = torch.rand(32, 2, generator=torch.Generator().manual_seed(0))


def make_model(input_shape: Any = None, num_classes: Any = None) -> nn.Sequential:
    del input_shape, num_classes
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))


def targets(points: Tensor) -> Tensor:
    return (3 * points.sum(1)).sin()


class Slope(Task):
    """Has the derivative of the model in its loss, as a gradient penalty and the equation of a PINN."""

    def forward(self, batch: Batch) -> Outcome:
        with torch.enable_grad():
            points = batch.inputs.detach().requires_grad_()
            outputs = self.model(points)
            (slope,) = torch.autograd.grad(outputs.sum(), points, create_graph=True)
        return of_slope(slope, outputs, batch.targets)


class FunctionalSlope(Task):
    """The same by `torch.func`."""

    def forward(self, batch: Batch) -> Outcome:
        slope = torch.func.grad(lambda points: self.model(points).sum())(batch.inputs)
        return of_slope(slope, self.model(batch.inputs), batch.targets)


def of_slope(slope: Tensor, outputs: Tensor, wanted: Tensor) -> Outcome:
    losses = {"fit": F.mse_loss(outputs[:, 0].float(), wanted), "slope": slope.float().square().mean()}
    return Outcome(losses, {}, outputs.detach(), len(outputs))


class HessianProduct:
    """Logs the sum of the entries of the Hessian of the loss."""

    def check(self, plan: Any) -> None:
        if plan.parallel.is_sharded:
            raise ConfigError("parallel", "no second derivatives of shards", remedy="use parallel=ddp")

    def before_update(self, trainer: Any, num_updates: int) -> None:
        del num_updates
        loss = trainer.forward(trainer.task, trainer.first_batch()).total_loss()
        trainer.log.row({"hessian/sum": hessian_sum(loss, list(trainer.model.parameters()))})


def hessian_sum(loss: Tensor, weights: list[nn.Parameter]) -> float:
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    product = torch.autograd.grad(sum(g.sum() for g in gradients), weights)
    return sum(float(p.sum()) for p in product)


def plain_loop(
    model: nn.Sequential, program: str, kind: str
) -> tuple[list[Tensor], list[Tensor], list[float]]:
    """Train on all points; return the weights, their average and the sums of the Hessian."""
    weights, wanted = list(model.parameters()), targets(POINTS)
    task = {"Slope": Slope, "FunctionalSlope": FunctionalSlope}.get(program)
    lbfgs = torch.optim.LBFGS(weights, lr=LR, max_iter=3)
    optimizers = [torch.optim.SGD(weights, lr=LR)]
    if kind == "turns":
        optimizers = [torch.optim.SGD(part.parameters(), lr=LR) for part in (model[0], model[2])]
    scaler = torch.amp.GradScaler("cpu", enabled=kind == "fp16")
    average, sums = list[Tensor](), list[float]()

    def loss() -> Tensor:
        with torch.autocast(
            "cpu", {"bf16": torch.bfloat16}.get(kind, torch.float16), enabled=kind in ("bf16", "fp16")
        ):
            if task is not None:
                return task(model, {})(Batch(POINTS, wanted)).total_loss()
            return F.mse_loss(model(POINTS)[:, 0].float(), wanted)

    def closure() -> Tensor:
        for weight in weights:
            weight.grad = None
        value = loss()
        scaler.scale(value).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        if kind == "clip":
            nn.utils.clip_grad_norm_(weights, 0.01)
        return value

    for _ in range(NUM_UPDATES):
        if program == "HessianProduct":
            sums.append(hessian_sum(loss(), weights))
        if program == "lbfgs":
            lbfgs.step(closure)  # type: ignore[arg-type]
        elif program == "sam":
            closure()
            before = [weight.detach().clone() for weight in weights]
            moves = [weight.grad.clone() for weight in weights if weight.grad is not None]
            norm = torch.cat([move.flatten() for move in moves]).norm()
            for weight, move in zip(weights, moves, strict=True):
                weight.data += 0.05 * move / norm
            closure()
            for weight, value in zip(weights, before, strict=True):
                weight.data.copy_(value)
        for optimizer in optimizers if program != "lbfgs" else ():
            if program != "sam":
                closure()
            scaler.step(optimizer)
            scaler.update()
        new = [weight.detach().clone() for weight in weights]
        average = [(a + b) / 2 for a, b in zip(average or new, new, strict=True)]
    return [weight.detach() for weight in weights], average, sums
