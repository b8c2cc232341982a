"""The options that can be ejected, and random configs of them that cover their pairs."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

OPTIMIZERS = (
    "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ademamix", "asgd", "lamb",
    "lbfgs optimizer.max_iter=2", "library", "lion", "mars", "muon", "nadam", "normuon", "prodigy", "radam", "rmsprop",
    "rprop", "sam", "sam optimizer@optimizer.base=adamw", "schedule_free_adamw", "scion", "sgd", "shampoo", "soap",
    "timm", "torch_muon",
)  # fmt: skip
"""Not kron, which compiles for long, and sparse_adam, which needs a model with sparse gradients."""
SCHEDULES = (
    "constant", "cosine", "cosine_restarts", "cyclic", "cyclic_momentum", "exponential", "inverse_sqrt",
    "lambda scheduler.fn._target_=math.cosh allow_targets=[math]", "linear", "multistep", "one_cycle",
    "one_cycle_momentum", "plateau scheduler.patience=0", "polynomial", "product", "rex", "sequential", "step", "tanh",
    "stepped scheduler._target_=torch.optim.lr_scheduler.StepLR +scheduler.step_size=2", "wsd",
)  # fmt: skip
TRANSFORMER = "model=gpt model.num_layers=1 model.width=16 model.num_heads=2"
PICTURES = "data=synthetic data.input_shape=[3,16,16] data.num_classes=5"
HOUSES = "data=csv data.train=../houses.csv limit_train_samples=60 limit_val_samples=15"
SEQUENCES = (
    "data=tokens data.root=../texts data.sequence_length=16 task=language_modeling global_batch_size=16 "
    "eval_batch_size=6 limit_train_samples=null limit_val_samples=14"
)
OPTIONS: Mapping[str, Sequence[str]] = {
    "optimizer": [f"optimizer={name}" for name in OPTIMIZERS],
    "schedule": [f"scheduler={name}" for name in SCHEDULES],
    "frame": ["", "scheduler.warmup=2", "scheduler.cooldown=1", "scheduler.warmup=1 scheduler.cooldown=2"],
    "model": [
        "model=mlp",
        "model=convnet model.widths=[4,8]",
        "model=deep_linear",
        "model.dropout=0.5",
        "model=airbench model.widths=[4,4,4]",
        "model=timm model.name=vit_tiny_patch16_224 +model.kwargs.img_size=16 +model.kwargs.patch_size=8 "
        "+model.kwargs.depth=2 +model.kwargs.embed_dim=12",
        TRANSFORMER,
        f"{TRANSFORMER} model.dropout=0.1 model.tie_embeddings=true",
        "model=track3 model.num_layers=1 model.width=16 model.head_dim=8",
    ],
    "precision": [
        "precision=fp32",
        "precision=bf16",
        "precision=fp16",
        "precision=fp16 precision.init_scale=1e6",
    ],
    "groups": [
        "",
        "param_groups.no_decay=true",
        "+param_groups.patterns.some.match=.*weight +param_groups.patterns.some.lr_scale=0.1",
        "+scheduler@schedules.weight_decay=linear",
    ],
    "compilation": ["", "compile=dynamo", "compile=aot_eager"],
    "clipping": ["", "max_grad_norm=0.1", "max_grad_value=0.01", "agc=0.01"],
    "accumulation": ["", "micro_batch_size=8"],
    "averaging": [
        "",
        "averaging=ema",
        "averaging=ema averaging.start_after=3 averaging.warmup=false",
        "averaging=tail averaging.start=4",
    ],
    "end": ["", "patience=1", "scheduler.noise_ratio=0.1", "skip_non_finite=true"],
    "mixing": ["", "mixing=mixup", "mixing=mixup_cutmix"],
    "loss": ["", "task.label_smoothing=0.1", "task.z_loss=0.01"],
    "data": [
        "data=digits",
        "data=digits data.augment.max_shift=1",
        "data=digits data.augment.flip=true data.test_ratio=0.1",
        "data=digits seed=3",
        "data=mnist1d data.num_samples=1000 data.shuffled=true",
        f"{PICTURES} data.num_samples=150 data.num_val_samples=60",
        f"{HOUSES} data.target=price task=regression",
        f"{HOUSES} data.target=[price,area] task=regression task.loss=mae data.test_ratio=0.1",
        f"{HOUSES} data.target=size",
        "data=tensors data.train=../points_train.pt data.val=../points_val.pt data.input_shape=[4] data.num_classes=5 "
        "limit_train_samples=null limit_val_samples=20",
        "data=tensors data.train=../labels_train.pt data.val=../labels_val.pt data.input_shape=[4] data.num_classes=5 "
        "task.multi_label=true limit_train_samples=null limit_val_samples=20",
        "data=memmap data.train=../arrays_train data.val=../arrays_val data.input_shape=[4] data.num_classes=3 "
        "data.num_workers=0 limit_train_samples=50 limit_val_samples=25",
        "data=image_folder data.root=../images data.input_shape=[3,16,16] data.num_workers=0 global_batch_size=16 "
        "limit_train_samples=null limit_val_samples=7",
        f"{SEQUENCES}",
        f"{SEQUENCES} data.sampling=documents",
    ],
}
"""What random configs are made of: by subject, alternatives of overrides."""


IMPOSSIBLE = (
    ("lbfgs", "param_groups"), ("lbfgs", "weight_decay"), ("lbfgs", "fp16"), ("=sam", "fp16"), ("prodigy", "lr_scale"),
    ("rprop", "no_decay"), ("rprop", "weight_decay"), ("plateau", "cooldown"), ("plateau", "noise_ratio"),
    ("stepped", "warmup"), ("stepped", "cooldown"), ("stepped", "noise_ratio"),
    # What a model reads. Images of 8 x 8 pixels are too small for airbench and for this model of timm.
    *((model, data) for model in ("model=gpt", "model=track3")
      for data in ("digits", "mnist1d", "synthetic", "csv", "tensors", "memmap", "image_folder")),
    *((model, "data=tokens") for model in
      ("mlp", "convnet", "deep_linear", "model.dropout=0.5", "airbench", "timm", "mixing", "smoothing")),
    *((model, data) for model in ("convnet", "airbench", "model=timm", "mixing=mixup_cutmix")
      for data in ("csv", "tensors", "memmap", "mnist1d")),
    ("airbench", "digits"), ("model=timm", "digits"),
    *(("z_loss", data) for data in ("digits", "mnist1d", "synthetic", "csv", "tensors", "memmap", "image_folder")),
    ("mixing", "regression"), ("smoothing", "regression"), ("mixing", "multi_label"), ("track3", "documents"),
    ("skip_non_finite", "lbfgs"), ("skip_non_finite", "=sam"),
)  # fmt: skip
"""Words of options that Hydrant does not combine."""
REFUSED = (
    ("stepped", "param_groups"), ("stepped", "schedules.weight_decay"), ("stepped", "torch_muon"),
    ("stepped", "normuon"), ("skip_non_finite", "fp16"),
)  # fmt: skip
"""Words of options that Hydrant combines, but eject does not. Their pairs count as not covered."""


ALONE = (*IMPOSSIBLE, *REFUSED)


@functools.cache
def combines(one: str, other: str, exceptions: Sequence[tuple[str, str]]) -> bool:
    """Return whether no exception has words of both alternatives."""
    pairs = ((one, other), (other, one))
    return not any(first in a and second in b for a, b in pairs for first, second in exceptions)


def is_possible(case: Mapping[str, str]) -> bool:
    """Return whether all alternatives of a config can be combined and ejected."""
    return all(combines(one, other, ALONE) for one, other in itertools.combinations(case.values(), 2))


def random_cases(count: int, seed: int) -> Iterator[dict[str, str]]:
    """Yield configs with an alternative of each subject: of some drawn ones, that with the most new pairs."""
    generator, covered = random.Random(seed), set[tuple[str, str]]()
    for _ in range(count):
        drawn = itertools.islice(filter(is_possible, _draws(generator)), 100)
        case = max(drawn, key=lambda one: len(pairs_of(one) - covered))
        covered |= pairs_of(case)
        yield case


def _draws(generator: random.Random) -> Iterator[dict[str, str]]:
    while True:
        yield {subject: generator.choice(some) for subject, some in OPTIONS.items()}


def pairs_of(case: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return every pair of alternatives in a config."""
    named = [f"{subject}: {words}" for subject, words in case.items()]
    return set(itertools.combinations(named, 2))


def all_pairs() -> set[tuple[str, str]]:
    """Return every pair of alternatives of two subjects that Hydrant combines."""
    subjects = [[f"{subject}: {words}" for words in some] for subject, some in OPTIONS.items()]
    return {
        (one, other)
        for some, others in itertools.combinations(subjects, 2)
        for one, other in itertools.product(some, others)
        if combines(one, other, IMPOSSIBLE)
    }


NOISE = "data=synthetic data.input_shape=[3,16,16] data.num_classes=5 data.num_samples=150 data.num_val_samples=60"
TEXTS = "data=tokens data.root=texts data.sequence_length=16 global_batch_size=8 task=language_modeling"
SMALL = "global_batch_size=6 eval_batch_size=4"
NEEDS: Mapping[str, str] = {
    "optimizer/sparse_adam": "model._target_=eject_parts.PixelBag ~model.hidden ~model.dropout "
    "allow_targets=[eject_parts]",
    "scheduler/lambda": "scheduler.fn._target_=math.cosh allow_targets=[math] duration=20",
    "scheduler/stepped": "scheduler._target_=torch.optim.lr_scheduler.StepLR +scheduler.step_size=2",
    "averaging/tail": "averaging.start=50%",
    "parallel/ddp": "parallel.num_processes=2 micro_batch_size=16",
    "compile/blocks": f"{NOISE} model=timm model.name=test_vit +model.kwargs.img_size=16",
    "model/timm": f"{NOISE} model.name=test_resnet",
    "model/airbench": NOISE,
    "model/conv1d": "data=mnist1d",
    "model/gru": "data=mnist1d",
    "model/gpt": TEXTS,
    "model/track3": TEXTS,
    "task/language_modeling": f"{TEXTS} model=gpt",
    "task/regression": "data=csv data.train=houses.csv data.target=price",
    "data/tokens": f"{TEXTS} model=gpt",
    "data/csv": "data.train=houses.csv data.target=price task=regression",
    "data/tensors": "data.train=points_train.pt data.val=points_val.pt data.input_shape=[4] data.num_classes=5 "
    f"{SMALL}",
    "data/memmap": f"data.train=arrays_train data.val=arrays_val data.input_shape=[4] data.num_classes=3 {SMALL}",
    "data/image_folder": f"data.root=images data.input_shape=[3,16,16] {SMALL}",
    "data/dataset": "data.train._target_=eject_parts.Points +data.train.count=60 data.val._target_=eject_parts.Points "
    f"+data.val.count=40 data.num_classes=2 data.input_shape=[3] allow_targets=[eject_parts] {SMALL}",
    **{f"data/{name}": f"data.root=data data.download=false {SMALL}" for name in ("mnist", "cifar10", "cifar100")},
}  # fmt: skip
"""What some options need besides, with the files that `write_files` of `eject_files` writes."""
WITHOUT = {
    "data/fashion_mnist": "as data/mnist",
    "data/kmnist": "as data/mnist",
    "data/emnist": "as data/mnist",
    "compile/reduce_overhead": "needs CUDA",
    "precision/tf32": "needs CUDA",
    "precision/bf16_true": "cannot be ejected",
    "precision/fp8": "cannot be ejected",
}
"""Options whose program is not checked."""
