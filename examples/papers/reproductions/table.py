"""The reproductions: what is trained, and what is measured. Their protocols are in conf/experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from examples.papers.reproductions import crowded_valley, decay, measures, widths
from examples.papers.reproductions.finding import Finding, Panel, Row


@dataclass(frozen=True)
class Reproduction:
    """A published result and what repeats it.

    Args:
        name: of the command and the result.
        paper: its authors and year.
        title: of its section.
        sweeps: the words of `python train.py` by part, besides those of the experiment. `{kind}` begins the names of
            the sweeps.
        keys: the config keys that are kept of each run.
        metrics: the metrics whose last values are kept.
        findings: what is measured, from the runs.
        panels: the picture, from the runs.
        miniature: words that make it a test of some seconds.
        directions: the numbers of the findings that the miniature agrees with too.
        curves: the metrics that are kept with all their values.
        target: a metric, and a value of which the number of updates that it takes to fall to it is kept, as `updates`.
        experiment: has the protocol and the claim.
        kept: returns the result of runs that another command makes.
        image: in docs/images.
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
    directions: Sequence[int] = ()
    curves: Sequence[str] = ()
    target: tuple[str, float] | None = None
    kept: Callable[[], dict[str, Any]] | None = None
    image: str = "paper-{name}.png"
    experiment: str = "{name}"

    @property
    def experiment_name(self) -> str:
        return self.experiment.format(name=self.name)


MUP = ("seed=0,1", "duration=150", "eval_every=150")
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
        findings=decay.separability,
        panels=decay.separability_panels,
        miniature=(
            "seed=0,1",
            "duration=150",
            "optimizer.lr=2e-2,3.2e-2",
            "optimizer.weight_decay=1e-3,1e-2",
        ),
    ),
    Reproduction(
        name="adamw_study",
        paper="Loshchilov and Hutter, 2019",
        title="AdamW and Adam, tuned equally",
        sweeps={"study": ()},
        keys=("optimizer._target_", "optimizer.lr", "optimizer.weight_decay", "seed"),
        metrics=("val/loss", "val/accuracy"),
        findings=decay.study,
        panels=decay.study_panels,
        miniature=(
            "hydra.sweeper.tune=['optimizer.lr=8e-3,1.6e-2']",
            "hydra.sweeper.seeds=4",
            "duration=20",
            "eval_every=20",
        ),
    ),
    Reproduction(
        name="league",
        paper="Schmidt et al., 2021",
        title="Optimizers, tuned equally",
        experiment="optimizer_league",
        sweeps={},
        keys=(),
        metrics=(),
        findings=crowded_valley.crowded_valley,
        panels=lambda rows: (),
        miniature=(),
        kept=crowded_valley.league_content,
        image="league-losses.png",
    ),
    Reproduction(
        name="mup",
        paper="Yang et al., 2022",
        title="muP and the best learning rate",
        experiment="mup_lr",
        sweeps={
            "adamw": ("model.width=16,32,64,128", "optimizer.lr=2e-3,4e-3,8e-3,1.6e-2,3.2e-2", *MUP),
            "muon": (
                "optimizer=muon",
                "mup=muon",
                "model.width=16,32,64,128",
                "optimizer.lr=4e-3,8e-3,1.6e-2,3.2e-2,6.4e-2",
                *MUP,
            ),
        },
        keys=("model.width", "optimizer.lr", "seed"),
        metrics=("val/loss",),
        findings=widths.transfer,
        panels=widths.transfer_panels,
        miniature=("duration=3", "eval_every=3", "model.width=16,32", "optimizer.lr=8e-3,1.6e-2", "seed=0,1"),
    ),
    Reproduction(
        name="mup_standard",
        paper="Yang et al., 2022",
        title="muP beside the standard parametrization",
        sweeps={
            f"{optimizer}_{name}": (*words, *without, "model.width=16,32,64,128")
            for optimizer, words in {
                "adamw": ("optimizer.lr=1e-3,2e-3,4e-3,8e-3,1.6e-2,3.2e-2",),
                "muon": (
                    "optimizer=muon",
                    "mup=muon",
                    "optimizer.lr=4e-3,8e-3,1.6e-2,3.2e-2,6.4e-2,0.128",
                ),
            }.items()
            for name, without in {"mup": (), "standard": ("mup=null", "model.mup_base_width=null")}.items()
        },
        keys=("model.width", "optimizer.lr", "seed"),
        metrics=("val/loss",),
        findings=widths.parametrizations,
        panels=widths.parametrizations_panels,
        miniature=("duration=3", "eval_every=3", "model.width=16,32", "optimizer.lr=8e-3,1.6e-2", "seed=0,1"),
    ),
    Reproduction(
        name="wsd",
        paper="Hägele et al., 2024",
        title="WSD beside cosine",
        sweeps={
            "cosine": ("scheduler=cosine", "duration=100,200,400"),
            "trunk": ("scheduler=wsd", "save_every=80", "keep_every=80", "hydra.sweep.subdir=${{seed}}"),
            **{
                f"decay{duration}": (
                    "scheduler=wsd",
                    f"duration={duration}",
                    f"resume=multirun/{{kind}}_wsd_trunk/${{{{seed}}}}/checkpoints/update_{begin:08}",
                    "resume_strict=false",
                )
                for duration, begin in ((100, 80), (200, 160))
            },
        },
        keys=("duration", "seed"),
        metrics=("val/loss",),
        findings=measures.durations,
        panels=measures.durations_panels,
        miniature=("limit_val_samples=64", "model.num_layers=1", "model.width=16", "seed=0,1"),
    ),
    Reproduction(
        name="mnist1d",
        paper="Greydanus and Kobak, 2020",
        title="Four models on MNIST-1D",
        sweeps={
            "logistic": ("model=mlp", "model.hidden=[]"),
            "mlp": ("model=mlp", "model.hidden=[256,256]", "model.dropout=0"),
            "cnn": ("model=conv1d",),
            "gru": ("model=gru",),
        },
        keys=("seed",),
        metrics=("val/accuracy", "val/loss"),
        curves=("val/accuracy",),
        findings=measures.models,
        panels=measures.models_panels,
        miniature=("duration=150", "eval_every=150", "seed=0,1"),
        directions=(4, 5),
    ),
    Reproduction(
        name="batch_size",
        paper="Shallue et al., 2019",
        title="Larger batches and fewer updates",
        sweeps={
            "sgd": ("global_batch_size=8,16,32,64,128,256,512", "optimizer.lr=5e-3,1e-2,2e-2,4e-2,8e-2,0.16"),
            "noise": (
                "hook=gradient_noise",
                "hooks.gradient_noise.every=2",
                "global_batch_size=64",
                "micro_batch_size=4",
                "optimizer.lr=4e-2",
                "duration=200",
            ),
        },
        keys=("global_batch_size", "optimizer.lr", "seed"),
        metrics=("val/loss",),
        curves=("gradient_noise/scale",),
        target=("val/loss", 0.2),
        findings=measures.batch_sizes,
        panels=measures.batch_sizes_panels,
        miniature=("optimizer.lr=4e-2", "duration=400", "seed=0,1"),
        directions=(1,),
    ),
    Reproduction(
        name="fashion_mnist",
        paper="Fashion-MNIST's table",
        title="Fashion-MNIST",
        sweeps={
            "mlp": ("model=mlp", "model.hidden=[256,128,64]"),
            "cnn": ("model=convnet", "model.widths=[16,32]", "duration=2ep", "eval_every=2ep"),
        },
        keys=("seed",),
        metrics=("val/accuracy", "val/loss"),
        findings=measures.clothes,
        panels=measures.clothes_panels,
        miniature=("limit_train_samples=640", "limit_val_samples=100", "seed=0,1"),
    ),
    Reproduction(
        name="double_descent",
        paper="Nakkiran et al., 2019",
        title="Double descent over the width",
        sweeps={"mlp": ("model.hidden=[2],[4],[8],[16],[24],[32],[64],[128],[256],[512]",)},
        keys=("model.hidden", "seed"),
        metrics=("train/accuracy", "val/accuracy"),
        findings=measures.double_descent,
        panels=measures.double_descent_panels,
        miniature=("model.hidden=[2],[32],[256]", "duration=100", "eval_every=100", "seed=0,1"),
    ),
    Reproduction(
        name="edge_of_stability",
        paper="Cohen et al., 2021",
        title="The edge of stability",
        sweeps={
            "sgd": ("optimizer.lr=0.1,0.2,0.4",),
            "harder": ("optimizer.lr=0.2,0.4", "label_noise=0.8", "duration=1500", "seed=3,4,5"),
        },
        keys=("optimizer.lr", "seed"),
        metrics=("train/loss",),
        curves=("sharpness/hessian",),
        findings=measures.edge_of_stability,
        panels=measures.edge_of_stability_panels,
        miniature=(
            "optimizer.lr=0.2",
            "duration=20",
            "eval_every=20",
            "hooks.sharpness.every=10",
            "seed=0,1",
        ),
    ),
    Reproduction(
        name="grokking",
        paper="Power et al., 2022",
        title="Grokking",
        sweeps={
            "decay": ("optimizer.weight_decay=1",),
            "without": ("optimizer.weight_decay=0",),
            "fewer": ("optimizer.weight_decay=1", "data.train_ratio=0.3"),
        },
        keys=("seed",),
        metrics=("train/accuracy", "val/accuracy"),
        curves=("train/accuracy", "val/accuracy"),
        findings=measures.grokking,
        panels=measures.grokking_panels,
        miniature=("duration=20", "eval_every=10", "log_every=10", "seed=0,1", "model.num_layers=1"),
    ),
)

NOT_RUN = {
    "track3": ("Jordan et al., 2026", "hydrant train experiment=track3, in examples/track3"),
    "airbench": ("Jordan, 2024", "hydrant train experiment=airbench, in examples/airbench"),
    "autoresearch": ("Karpathy, 2026", "python train.py experiment=autoresearch data.root=data/texts"),
}
"""The experiments that need a GPU: their authors and their commands."""
