"""The reproductions: what is trained, and what is measured. Their protocols are in conf/experiment/paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.reproductions import measures
from benchmarks.reproductions.finding import Finding, Panel, Row


@dataclass(frozen=True)
class Reproduction:
    """A published result and what repeats it.

    Args:
        name: of its experiment `paper/<name>`, which has the protocol and the claim.
        paper: its authors and year.
        title: of its section.
        sweeps: the words of `python train.py` by part, besides those of the experiment. `{kind}` begins the names of
            the sweeps.
        keys: the config keys that are kept of each run.
        metrics: the metrics whose last values are kept.
        findings: what is measured, from the runs.
        panels: the picture, from the runs.
        miniature: words that make it a test of some seconds.
        curves: the metrics that are kept with all their values.
    """

    name: str
    paper: str
    title: str
    sweeps: Mapping[str, Sequence[str]]
    keys: Sequence[str]
    metrics: Sequence[str]
    findings: Callable[[Sequence[Row]], Sequence[Finding]]
    panels: Callable[[Sequence[Row]], Sequence[Panel]]
    miniature: Sequence[str]
    curves: Sequence[str] = field(default_factory=tuple)


REPRODUCTIONS = (
    Reproduction(
        name="adamw",
        paper="Loshchilov and Hutter, 2019",
        title="Weight decay and learning rate",
        sweeps={
            "sgd": (
                "optimizer=sgd",
                "optimizer.lr=5e-3,1e-2,2e-2,4e-2,8e-2",
                "optimizer.weight_decay=1e-4,4e-4,1.6e-3,6.4e-3,2.56e-2,0.1024",
            ),
            "adam": (
                "optimizer=adam",
                "optimizer.lr=2e-3,4e-3,8e-3,1.6e-2,3.2e-2",
                "optimizer.weight_decay=2.5e-5,1e-4,4e-4,1.6e-3,6.4e-3,2.56e-2",
            ),
            "adamw": (
                "optimizer=adamw",
                "optimizer.lr=2e-3,4e-3,8e-3,1.6e-2,3.2e-2",
                "optimizer.weight_decay=4e-3,1.6e-2,6.4e-2,0.256,1.024,4.096",
            ),
        },
        keys=("optimizer.lr", "optimizer.weight_decay", "seed"),
        metrics=("val/loss", "val/accuracy"),
        findings=measures.separability,
        panels=measures.separability_panels,
        miniature=("seed=0,1", "duration=150", "optimizer.lr=2e-2,3.2e-2", "optimizer.weight_decay=1e-3,1e-2"),
    ),
)

NOT_RUN = {
    "track3": ("Jordan et al., 2026", "python train.py experiment=track3"),
    "airbench": ("Jordan, 2024", "python train.py experiment=airbench"),
    "autoresearch": ("Karpathy, 2026", "python train.py experiment=autoresearch data.root=data/texts"),
}
"""The experiments that need a GPU: their authors and their commands."""
