"""docs/scale.md: what of scaling is measured and simulated, and what follows on paper."""

from __future__ import annotations

from benchmarks import on_paper

HEAD = """\
# Scale

How far the ranks of one run reach, by [benchmarks](../benchmarks/README.md): **measured** on 1 to 4 ranks of one
machine, **simulated** on up to 8,192 ranks as to what is exchanged, and on **paper** as to how long that takes on
GPUs. Nothing of the last part was measured on a cluster. Written by `scripts/bench`, never by hand.

```bash
scripts/bench scale
```
"""
PAPER = """\
## On paper: 8 to 8,192 GPUs

What is assumed:

- An H200 computes {rate:.0f} TFLOP/s in bf16, {mfu:.0%} of its {peak:.0f}; six operations a weight and token; a third
  of them forward. It has {memory:.0f} GB, of which a weight takes {state} bytes (itself, gradient, two moments in
  fp32) and a token {activations} bytes a layer and unit of width.
- Eight GPUs a node. A GPU sends {nvlink:.0f} GB/s by NVLink and {network:.0f} GB/s to other nodes: four fifths of 450
  and of 400 Gb/s. A hop takes {nvlink_hop:.1f} us and {network_hop:.1f} us, as in NCCL's own tuning model of bulk
  transfers.
- All-gather and reduce-scatter go by rings through all ranks, and a sum has the hops of a tree: NCCL without SHARP,
  NVLS and PAT, which need fewer hops where they are.
- Network and GPU work at once, each at one thing after the other. Nobody straggles and nothing fails.
- Weak scaling: every GPU has the same samples on any number of GPUs. Whether so large a batch still trains well is
  another question.

The part of an update that is computing, without what the hosts exchange; a group of `hsdp` is a node.

{full}

With an eighth of the samples a GPU, which is what remains where the batch does not grow with the GPUs. Where that is
less than the 20 ms of a host below, only CUDA graphs keep a GPU busy, on any number of them:

{eighth}

**Where it breaks down.** `ddp` and `hsdp` end where computing no longer covers what a node sends: a matter of the
samples a GPU has, and hardly of their number. `fsdp` over all GPUs ends by its hops, of which every gather has one a
rank. And it ends by its padding: torch gives each rank whole rows of a tensor, as many as the first rank has, so one
of fewer rows than ranks is sent many times over. The position embedding of a ViT has one row. How much is gathered in
place of the weights (the simulation has it byte for byte):

{padding}

**Hydrant's own exchange.** In each update all hosts add up how many targets they had and whether a signal asks to stop
(`Parallel.agree`, {agreed} bytes). gloo does it by a ring, in 2 (n - 1) hops of {host_hop:.0f} us here. It is hidden
while it ends, with the {host_work:.0f} ms that a host needs to issue an update, before the GPU has computed; beyond
that it sets the pace. A tree would take 2 log2(n) hops.

{agreed_table}

**What follows for the design.**

- The default is right to be `ddp`; where a model does not fit, `fsdp` within a node or a few, and `hsdp` with
  `replicate=auto`, one group a node, beyond.
- `param_dtype=bfloat16` belongs to `precision=bf16` as soon as a GPU has few samples.
- The hosts' exchange is as good as free up to some hundreds of ranks. For thousands it has to become a tree, or go
  with the gradients. gloo also connects each rank with every other one when the group is made, which is {connections}
  connections a process at 8,192.
- Tensors with fewer rows than ranks should be cut along another side, or not at all.
"""


def text(measured: str) -> str:
    """The page; `measured` is the section of what was measured and simulated, empty if there is none."""
    paper = PAPER.format(
        rate=on_paper.PEAK * on_paper.MFU / 1e12, mfu=on_paper.MFU, peak=on_paper.PEAK / 1e12,
        memory=on_paper.MEMORY / 1e9, state=on_paper.STATE, activations=on_paper.ACTIVATIONS,
        nvlink=on_paper.NVLINK / 1e9, network=on_paper.NETWORK / 1e9, nvlink_hop=on_paper.NVLINK_HOP * 1e6,
        network_hop=on_paper.NETWORK_HOP * 1e6, host_hop=on_paper.HOST_HOP * 1e6, host_work=on_paper.HOST_WORK * 1e3,
        agreed=on_paper.AGREED, connections=f"{on_paper.WORLDS[-1] - 1:,}",
        full="\n".join(on_paper.efficiencies(1)), eighth="\n".join(on_paper.efficiencies(1 / 8)),
        padding="\n".join(on_paper.paddings()), agreed_table="\n".join(on_paper.agreements()),
    )  # fmt: skip
    return "\n".join(part for part in (HEAD, measured, paper) if part)
