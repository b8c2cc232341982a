"""Write docs/internals/scale.md: what is measured, what is simulated, and what follows from calculations."""

from __future__ import annotations

from benchmarks import on_paper

HEAD = """\
# Scale

**In short:** use `parallel=ddp` while the model fits on one GPU; `fsdp` on one machine or a few if it does not; and
`hsdp` with one group per machine beyond that. Hydrant's own exchange between ranks is hidden up to some hundreds of
ranks.

This page has three parts: **measurements** with 1 to 4 ranks on one machine, a **simulation** of what up to 8,192
ranks exchange, and **calculations** of how long that takes on GPUs. Nothing in the last part was measured on a
cluster. `scripts/bench` writes this page; do not edit it by hand. [benchmarks](../../benchmarks/README.md) explains
the method.

```bash
scripts/bench scale
```
"""
CALCULATED = """\
## Calculated: 8 to 8,192 GPUs

Assumptions:

- An H200 computes {rate:.0f} TFLOP/s in bf16, which is {mfu:.0%} of its {peak:.0f}. An update needs six operations
  per weight and token, a third of them in the forward pass. The GPU has {memory:.0f} GB. A weight needs {state} bytes
  (itself, gradient, two moments in fp32), and a token {activations} bytes per layer and unit of width.
- A machine has eight GPUs. A GPU sends {nvlink:.0f} GB/s by NVLink and {network:.0f} GB/s to other machines: four
  fifths of 450 GB/s and of 400 Gb/s. A hop takes {nvlink_hop:.1f} us and {network_hop:.1f} us, as in NCCL's tuning
  model for bulk transfers.
- All-gather and reduce-scatter use rings through all ranks, and all-reduce has the hops of a tree. This is NCCL
  without SHARP, NVLS and PAT, which need fewer hops if they are available.
- Network and GPU work at the same time, each on one thing after another. No rank is slower than the others, and
  nothing fails.
- Weak scaling: each GPU has the same number of samples for any number of GPUs. Whether training with so large a batch
  still works is another question.

The tables show the fraction of an update that is computation, without the hosts' exchange. A group of `hsdp` is one
machine.

{full}

With an eighth of the samples per GPU, as when the batch does not grow with the number of GPUs. If an update is
shorter than the 20 ms that a host needs to issue it (see below), only CUDA graphs keep a GPU busy:

{eighth}

**Limits.** `ddp` and `hsdp` are limited when computation no longer covers what a machine sends. That depends on the
samples per GPU and hardly on the number of GPUs. `fsdp` over all GPUs is limited by hops, because each gather has one
per rank, and by padding: torch gives each rank whole rows of a tensor, as many as the first rank has. So a tensor
with fewer rows than ranks is sent many times. The position embedding of a ViT has one row. The amount that is
gathered, relative to the weights (the simulation has the same numbers, byte for byte):

{padding}

**Hydrant's own exchange.** In each update, all hosts add up the number of targets and the signals that ask to stop
(`Parallel.all_reduce_targets`, {host_bytes} bytes). gloo uses a ring with 2 (n - 1) hops of {host_hop:.0f} us. The
exchange is hidden if it and the {host_work:.0f} ms in which a host issues an update end before the GPU has computed.
Otherwise it determines the speed. A tree would need 2 log2(n) hops.

{host_table}

**Consequences for the design.**

- `ddp` is the right default. If a model does not fit, use `fsdp` on one machine or a few, and `hsdp` with
  `replicate=auto`, one group per machine, beyond that.
- Use `param_dtype=bfloat16` with `precision=bf16` if a GPU has few samples.
- The hosts' exchange is nearly free up to some hundreds of ranks. For thousands, it must use a tree, or be part of
  the gradients' exchange. gloo also connects each rank with every other one when the group is created: {connections}
  connections per process at 8,192 ranks.
- Tensors with fewer rows than ranks should be split along another dimension, or not at all.
"""


def text(measured: str) -> str:
    """Return the page. `measured` is the section of measurements and simulations; it may be empty."""
    calculated = CALCULATED.format(
        rate=on_paper.PEAK * on_paper.MFU / 1e12, mfu=on_paper.MFU, peak=on_paper.PEAK / 1e12,
        memory=on_paper.MEMORY / 1e9, state=on_paper.STATE, activations=on_paper.ACTIVATIONS,
        nvlink=on_paper.NVLINK / 1e9, network=on_paper.NETWORK / 1e9, nvlink_hop=on_paper.NVLINK_HOP * 1e6,
        network_hop=on_paper.NETWORK_HOP * 1e6, host_hop=on_paper.HOST_HOP * 1e6, host_work=on_paper.HOST_WORK * 1e3,
        host_bytes=on_paper.HOST_BYTES, connections=f"{on_paper.WORLDS[-1] - 1:,}",
        full="\n".join(on_paper.efficiencies(1)), eighth="\n".join(on_paper.efficiencies(1 / 8)),
        padding="\n".join(on_paper.paddings()), host_table="\n".join(on_paper.host_exchanges()),
    )  # fmt: skip
    return "\n".join(part for part in (HEAD, measured, calculated) if part)
