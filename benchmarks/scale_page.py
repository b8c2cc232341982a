"""Write docs/internals/scale.md: which `parallel=` to use for how many GPUs, from calculations."""

from __future__ import annotations

from benchmarks import on_paper

PAGE = """\
# Scale

Use `parallel=ddp` while the model fits on one GPU; else `fsdp` on one machine or a few, and `hsdp` beyond that,
with one group per machine (`replicate=auto`). With few samples per GPU, add `param_dtype=bfloat16` to
`precision=bf16`.

`scripts/bench` writes this page. It is calculated, not measured on a cluster. What is measured on one machine, and
the simulated collectives, which equal those of the calculation, are [in the
results](../../benchmarks/results/README.md#{anchor}).

```bash
scripts/bench scale
```

The share of an update that is computing, by number of GPUs:

{table}

With an eighth of these samples per GPU, the last line is {eighth}.

**Assumptions.** An H200 computes {rate:.0f} TFLOP/s in bf16, and has {memory:.0f} GB. A weight needs {state} bytes,
a token {activations} per layer and unit of width. A machine has {node} GPUs. Each sends {nvlink:.0f} GB/s by
NVLink, where a hop takes {nvlink_hop:.1f} us, and {network:.0f} GB/s to other machines, where a hop takes
{network_hop:.1f} us. Gathers are rings through all ranks, all-reduce has the hops of a tree. Network and GPU work
at the same time. Each GPU has the same number of samples for any number of GPUs.

**Limits.**

- `ddp` and `hsdp`: what a machine sends, beside its computation. This depends on the samples per GPU, hardly on the
  number of GPUs.
- `fsdp` over all GPUs: the hops, one per rank in each gather, and padding. A rank holds whole rows of a tensor, so
  a tensor with fewer rows than ranks is sent many times.
"""


def text(anchor: str) -> str:
    """Return the page. `anchor` is the section of the results with what is measured."""
    shares = on_paper.efficiencies(1 / 8)[-1].split("|")[3:7]
    return PAGE.format(
        anchor=anchor, table="\n".join(on_paper.efficiencies(1)),
        eighth=", ".join(share.strip() for share in shares),
        rate=on_paper.PEAK * on_paper.MFU / 1e12, memory=on_paper.MEMORY / 1e9, state=on_paper.STATE,
        activations=on_paper.ACTIVATIONS, node=on_paper.NODE, nvlink=on_paper.NVLINK / 1e9,
        network=on_paper.NETWORK / 1e9, nvlink_hop=on_paper.NVLINK_HOP * 1e6,
        network_hop=on_paper.NETWORK_HOP * 1e6,
    )  # fmt: skip
