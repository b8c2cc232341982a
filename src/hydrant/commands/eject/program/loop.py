"""The training loop."""

# The branches of a program are decided alike.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

import json
import math
import os
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch._inductor.config as inductor
import torch.distributed as dist
from torch import Tensor, nn

from hydrant.commands.eject.program.average import Average
from hydrant.commands.eject.program.evaluation import evaluate, means, test_model
from hydrant.commands.eject.program.gradients import (
    add_gradients,
    mean_loss,
    restore_buffers,
    step_with_closure,
)
from hydrant.commands.eject.program.loss_compiled import compile_in_place
from hydrant.commands.eject.program.optimizer import (
    averaged_weights,
    clip_gradients,
    gradient_norm,
    set_trained_weights,
)
from hydrant.commands.eject.program.parts import (
    load_data,
    lr_schedule,
    make_mixup,
    make_model,
    make_optimizer,
    wrap_for_ranks,
)
from hydrant.commands.eject.program.ranks import join_ranks, of_all_ranks
from hydrant.commands.eject.program.saving import has_stalled, is_due, log
from hydrant.commands.eject.program.schedule import set_schedules
from hydrant.commands.eject.program.settings import *
from hydrant.seeding import (
    MODEL,
    hash_of,  # pyright: ignore[reportPrivateUsage]
)
from hydrant.training.distributed.buffers import RankBuffers
from hydrant.training.prepare.memory_format import convert_to_channels_last


def main() -> None:
    """Train, or continue from the last checkpoint."""
    if RANKED:
        join_ranks()
    FOLDER.mkdir(parents=True, exist_ok=True)
    if MATMUL != "highest":
        torch.set_float32_matmul_precision(MATMUL)  # TensorFloat-32
    elif CONVOLVES:
        torch.backends.cudnn.allow_tf32 = False  # convolutions in float32, as matrix products are
    if DETERMINISTIC:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if CONVOLVES and TIMES_KERNELS:
        torch.backends.cudnn.benchmark = True  # on CUDA, take the fastest algorithm of each convolution
    if COMPILES:
        os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # round a product and a sum once
    if COMPILES and SAME_RANDOM:
        inductor.fallback_random = True  # dropout draws the same numbers as if it were not compiled
    train, val = load_data()
    torch.manual_seed(hash_of(SEED, MODEL))
    model = make_model().to(DEVICE)
    if CHANNELS_LAST or (CHANNELS_LAST_ON_CUDA and DEVICE.type == "cuda"):
        convert_to_channels_last(model)
    if RUNS_COMPILED:
        compile_in_place(model)
    optimizer = make_optimizer(model)
    if RANKED:
        # The ranks average their gradients.
        ranked = wrap_for_ranks(model)
        if HAS_BUFFERS:
            rank_buffers = RankBuffers(model, RANK, NUM_RANKS)
    num_updates, measured = 0, list[tuple[int, Tensor]]()  # updates made; batches since the last log
    best: dict[str, Any] | None = None  # the value and the update of the best evaluation
    if HAS_MODES:
        optimizer.train()  # the weights to train differ from those to evaluate
    if MIXES:
        mixup = make_mixup()
    if SCALES_LOSS:
        scaler = torch.amp.GradScaler(DEVICE.type, INIT_SCALE, GROWTH_FACTOR, BACKOFF_FACTOR, GROWTH_INTERVAL)
    if COUNTS_SKIPPED:
        num_skipped, num_skipped_in_a_row = 0, 0
    if AVERAGES:
        average = Average(model)

    if (FOLDER / "last.pt").exists():
        # On the host: optimizers keep counts of steps there, and `load_state_dict` moves all else to DEVICE.
        state = torch.load(FOLDER / "last.pt", map_location="cpu", weights_only=True)
        num_updates, best = state["num_updates"], state["best"]
        if RANKED:
            measured = [(size, values.to(DEVICE)) for size, values in state["measured"][RANK]]
        else:
            measured = [(size, values.to(DEVICE)) for size, values in state["measured"]]
        if not RANKED or RANK == 0:
            # Later rows are made again, and the last one may be incomplete.
            rows = (FOLDER / "metrics.jsonl").read_text().splitlines(keepends=True)
            rows = [row for row in rows if row[-1] == "\n" and json.loads(row)["num_updates"] <= num_updates]
            if TESTS:
                rows = [row for row in rows if "test/num_updates" not in json.loads(row)]
            (FOLDER / "new.jsonl").write_text("".join(rows))
            (FOLDER / "new.jsonl").replace(FOLDER / "metrics.jsonl")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if HAS_MODES:
            set_trained_weights(model, optimizer, state["trained_weights"])
        if SCALES_LOSS:
            scaler.load_state_dict(state["scaler"])
        if COUNTS_SKIPPED:
            num_skipped, num_skipped_in_a_row = state["num_skipped"]
        if AVERAGES:
            average.model.load_state_dict(state["average"])
        if HAS_PLATEAU:
            lr_schedule.load_state_dict(state["schedule"])
    else:
        if not RANKED or RANK == 0:
            (FOLDER / "metrics.jsonl").unlink(missing_ok=True)  # of a run without a checkpoint
        if EVALS:
            with averaged_weights(model, optimizer) if HAS_MODES else nullcontext():
                if AVERAGES:
                    log(0, {**evaluate(model, val, "val"), **evaluate(average.model, val, "val_ema")})
                else:
                    log(0, evaluate(model, val, "val"))

    logged_at, since = num_updates, time.perf_counter()  # for the pace: updates and time of the last log
    while num_updates < NUM_UPDATES and (PATIENCE is None or not has_stalled(num_updates, best)):
        if ONLY_LR:
            optimizer.param_groups[0]["lr"] = LR * lr_schedule(num_updates)
        else:
            scheduled = set_schedules(optimizer, num_updates)
        if COUNTS_SKIPPED and HAS_BUFFERS:
            buffers = [buffer.clone() for buffer in model.buffers()]
        if NEEDS_CLOSURE:
            batches, grad_norm = step_with_closure(model, optimizer, train, num_updates, mixup)
        else:
            optimizer.zero_grad()
            if RANKED and HAS_BUFFERS:
                rank_buffers.begin_update()
            batches = add_gradients(ranked if RANKED else model, train, num_updates, mixup, scaler)
            if SCALES_LOSS:
                scaler.unscale_(optimizer)
            if CLIPS:
                grad_norm = clip_gradients(model, optimizer)
            elif HAS_SPARSE or not IN_ORDER:
                grad_norm = gradient_norm(model, optimizer)
            else:
                grad_norm = nn.utils.get_total_norm(
                    [p.grad for p in model.parameters() if p.grad is not None]
                )
        if SCALES_LOSS:
            scale = scaler.get_scale()
            scaler.update()
            is_finite = scaler.get_scale() >= scale
        elif SKIPS_NON_FINITE:
            is_finite = bool(mean_loss(batches).isfinite() & grad_norm.isfinite())
        if COUNTS_SKIPPED and not is_finite:
            num_skipped, num_skipped_in_a_row = num_skipped + 1, num_skipped_in_a_row + 1
            if num_skipped_in_a_row > MAX_SKIPPED:
                raise FloatingPointError(f"NaN or infinity, {num_skipped_in_a_row} times in a row")
            if HAS_BUFFERS:
                restore_buffers(model, buffers)
            if SCALES_LOSS:  # a gradient overflowed, so make no step: try again
                continue
        if not NEEDS_CLOSURE and (not SKIPS_NON_FINITE or is_finite):
            optimizer.step()
            if COUNTS_SKIPPED:
                num_skipped_in_a_row = 0
        num_updates += 1
        if RANKED and HAS_BUFFERS:
            rank_buffers.end_update()
        if LOGS and (not SKIPS_NON_FINITE or is_finite):
            measured += batches
        if AVERAGES and (not SKIPS_NON_FINITE or is_finite):
            average.update(model, num_updates)

        row, is_last, is_best = dict[str, float](), num_updates == NUM_UPDATES, False
        if PATIENCE is not None:
            is_stalled = has_stalled(num_updates, best)  # unless the evaluation finds a new best
        if LOGS and (
            is_last
            or (PATIENCE is not None and is_stalled)
            or (num_updates % LOG_EVERY < 1 if ROUNDS_UP else is_due(num_updates, LOG_EVERY))
        ):
            if SKIPS_NON_FINITE:
                if measured:
                    row |= means(measured, "train")
                if is_finite:
                    row["optim/grad_norm"] = grad_norm.item()
            elif PATIENCE is None or MAX_GRAD_NORM is not None:
                row |= {**means(measured, "train"), "optim/grad_norm": grad_norm.item()}
            else:
                row |= means(measured, "train")
                if is_last or (num_updates % LOG_EVERY < 1 if ROUNDS_UP else is_due(num_updates, LOG_EVERY)):
                    row["optim/grad_norm"] = grad_norm.item()
            measured.clear()
            if not all(map(math.isfinite, row.values())):
                raise FloatingPointError(f"NaN or infinity up to update {num_updates}: {row}")
            if ONLY_LR:
                row["optim/lr"] = optimizer.param_groups[0]["lr"]
            else:
                row |= scheduled
            if SCALES_LOSS:
                row["optim/loss_scale"] = scaler.get_scale()
            if COUNTS_SKIPPED:
                row["optim/num_skipped"] = num_skipped
            pace = (num_updates - logged_at) / (time.perf_counter() - since)
            row |= {"perf/updates_per_second": pace, "perf/samples_per_second": pace * BATCH_SIZE}
            logged_at, since = num_updates, time.perf_counter()
        paused_at = time.perf_counter()  # the pace is that of training alone
        if EVALS and (
            is_last or (num_updates % EVAL_EVERY < 1 if ROUNDS_UP else is_due(num_updates, EVAL_EVERY))
        ):  # a multiple is reached
            with averaged_weights(model, optimizer) if HAS_MODES else nullcontext():
                row |= evaluate(model, val, "val")
                if AVERAGES:
                    row |= evaluate(average.model, val, "val_ema")
            if HAS_PLATEAU:
                lr_schedule.observe(row)
            if IS_MAX:
                is_best = best is None or row[BEST_METRIC] > best["value"]
            else:
                is_best = best is None or row[BEST_METRIC] < best["value"]
            if is_best:
                best = {"metric": BEST_METRIC, "value": row[BEST_METRIC], "num_updates": num_updates}
        if row:
            log(num_updates, row)
        if SAVES and (
            is_last
            or is_best
            or (num_updates % SAVE_EVERY < 1 if ROUNDS_UP else is_due(num_updates, SAVE_EVERY))
            or (PATIENCE is not None and has_stalled(num_updates, best))
        ):
            if not all(parameter.isfinite().all() for parameter in model.parameters()):
                raise FloatingPointError(f"NaN or infinity in the weights after update {num_updates}")
            state = {
                "num_updates": num_updates,
                "best": best,
                "measured": of_all_ranks(measured) if RANKED else measured,
            }
            if SCALES_LOSS:
                state["scaler"] = scaler.state_dict()
            if COUNTS_SKIPPED:
                state["num_skipped"] = num_skipped, num_skipped_in_a_row
            if AVERAGES:
                state["average"] = average.model.state_dict()
            if HAS_PLATEAU:
                state["schedule"] = lr_schedule.state_dict()
            if HAS_MODES:
                state["trained_weights"] = [parameter.detach().clone() for parameter in model.parameters()]
            with averaged_weights(model, optimizer) if HAS_MODES else nullcontext():
                state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                if not RANKED or RANK == 0:
                    for name in ("best.pt", "last.pt") if is_best else ("last.pt",):
                        torch.save(state, FOLDER / "new.pt")  # an interrupted write leaves the old file whole
                        (FOLDER / "new.pt").replace(FOLDER / name)
        since += time.perf_counter() - paused_at
    if TESTS:
        with averaged_weights(model, optimizer) if HAS_MODES else nullcontext():
            log(num_updates, test_model(model, average, num_updates))
    summary = {"status": "finished", "num_updates": num_updates, "total_updates": NUM_UPDATES, "best": best}
    if not RANKED or RANK == 0:
        (FOLDER / "summary.json").write_text(json.dumps(summary))
    if RANKED:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
