"""The wrong inputs and what is said about them: (words of the command line, the message).

`...` stands for any text; everything else is word for word, from the key to the remedy.
"""

OPTIMIZERS = (
    "adadelta, adafactor, adagrad, adam, adamax, adamw, asgd, lamb, lbfgs, lion, muon, nadam, radam, rmsprop, "
    "rprop, sgd, sparse_adam, timm, torch_muon"
)
KEYS = (
    "allow_targets, best, compile, data, deterministic, duration, eval_batch_size, eval_every, "
    "global_batch_size, init_from, keep_last, limit_train_samples, limit_val_samples, log_every, max_grad_norm, "
    "max_skipped, micro_batch_size, model, name, optimizer, parallel, precision, resume, save_every, scheduler, "
    "schedules, seed, task, tracker"
)
LENGTHS = "500 (updates), 10ep (epochs)"
DURATION = f"is no duration; write {LENGTHS} or 64000sa (samples)"
CADENCE = f"is no duration; write {LENGTHS}, 64000sa (samples), 5% (of the run) or null (never)"
ALLOWED = (
    "is not allowed: what is called lies in hydrant, torch, torchvision, timm, torchmetrics, torchao. "
    "If you trust it, add its package to allow_targets"
)
BETAS = "optimizer.betas: needs a list of 2 numbers, not"
SMALL = "data=synthetic data.num_classes=3 data.num_samples=64 data.num_val_samples=8 global_batch_size=8"

OPTIONS = [
    ("optimizer=adamm", f"optimizer: no option 'adamm'; did you mean 'adam'... Options: {OPTIMIZERS}"),
    ("scheduler=cosin", "scheduler: no option 'cosin'; did you mean 'cosine'? Options: constant, cosine, linear,..."),
    ("data=digit", "data: no option 'digit'; did you mean 'digits'? Options: cifar10, cifar100, digits,..."),
    ("model=convnett", "model: no option 'convnett'; did you mean 'convnet'? Options: convnet, mlp, timm"),
    ("task=clasification", "task: no option 'clasification'; did you mean 'classification'? Options: ..."),
    ("precision=fp17", "precision: no option 'fp17'; did you mean 'fp16'? Options: bf16, fp16, fp32, tf32"),
    ("compile=off", "compile: no option 'off'. Options: default, eager, max_autotune, reduce_overhead"),
    ("parallel=double", "parallel: no option 'double'... Options: ...single"),
    ("tracker=wand", "tracker: no option 'wand'; did you mean 'wandb'? Options: local, tensorboard, wandb"),
    ("experiment=digits_convne", "experiment: no option 'digits_convne'; did you mean 'digits_convnet'? Options: ..."),
    ("debug=smok", "debug: no option 'smok'; did you mean 'smoke'? Options: overfit, smoke"),
    ("hydra/launcher=nope", "hydra/launcher: no option 'nope'. Options: ...basic..."),
    ("+scheduler@schedules.weight_decay=linar", "scheduler: no option 'linar'; did you mean 'linear'? Options: ..."),
    ("precision=null", "precision: no option null. Options: bf16, fp16, fp32, tf32"),
    ("optimizer=null", f"optimizer: no option null. Options: {OPTIMIZERS}"),
    ("precision=3", "precision: no option 3. Options: bf16, fp16, fp32, tf32"),
    ("optimizer=[adam]", "optimizer: no option ['adam']... Options: adadelta, ..."),
    ("+optimizer=sgd", "optimizer: one is chosen already; to choose another, write optimizer=sgd without +"),
    (
        "scheduler@schedules.weight_decay=linear",
        "scheduler@schedules.weight_decay: nothing is chosen there yet; "
        "write +scheduler@schedules.weight_decay=linear",
    ),
    ("~optimizer", "optimizer: needs a value; give optimizer=<value>"),
]

UNKNOWN_KEYS = [
    ("optimzer=adamw", f"optimzer: no such key; did you mean 'optimizer'? Keys: {KEYS}"),
    ("sead=1", f"sead: no such key; did you mean 'seed'? Keys: {KEYS}"),
    ("+foo=1", f"foo: no such key. Keys: {KEYS}"),
    ("optimizer.lrr=1", "optimizer.lrr: no such key; did you mean 'lr'? Keys of optimizer: amsgrad, betas, eps, ..."),
    (
        "+optimizer.lrr=1",
        "optimizer.lrr: torch.optim.AdamW has no argument 'lrr'; did you mean 'lr'? Arguments: amsgrad, betas, ...",
    ),
    (
        "optimizer.maximize=true",
        "optimizer.maximize: no such key... To add it, write +optimizer.maximize=<value>",
    ),
    ("optimizer.lr.x=1", "optimizer.lr.x: no such key: optimizer.lr holds none"),
    ("best.metrc=x", "best.metrc: no such key; did you mean 'metric'? Keys of best: metric, mode"),
    ("schedules.momentum=1", "schedules.momentum: no such schedule; choose one: +scheduler@schedules.momentum=linear"),
    ("~sed", "sed: no such key, so none to remove"),
    ("~seed", "seed: needs a value; give seed=<value>"),
    ("+seed=1", "seed: there already; to change it, write seed=<value> without +"),
]

TYPES = [
    ("seed=abc", "seed: needs a whole number, not 'abc'"),
    ("seed=1.5", "seed: needs a whole number, not 1.5"),
    ("seed=true", "seed: needs a whole number, not true"),
    ("seed=null", "seed: needs a whole number, not null"),
    ("seed=", "seed: needs a whole number, not ''"),
    ("seed=[1,2]", "seed: needs a whole number, not [1, 2]"),
    ("global_batch_size=many", "global_batch_size: needs a whole number, not 'many'"),
    ("global_batch_size=64.0", "global_batch_size: needs a whole number, not 64.0"),
    ("micro_batch_size=half", "micro_batch_size: needs a whole number or null, not 'half'"),
    ("eval_batch_size=null", "eval_batch_size: needs a whole number, not null"),
    ("keep_last=1.5", "keep_last: needs a whole number, not 1.5"),
    ("max_grad_norm=big", "max_grad_norm: needs a number or null, not 'big'"),
    ("max_grad_norm=nan", "max_grad_norm: needs a number, not nan"),
    ("max_skipped=few", "max_skipped: needs a whole number, not 'few'"),
    ("limit_train_samples=0.5", "limit_train_samples: needs a whole number or null, not 0.5"),
    ("limit_val_samples=all", "limit_val_samples: needs a whole number or null, not 'all'"),
    ("deterministic=maybe", "deterministic: needs true or false, not 'maybe'"),
    ("deterministic=5", "deterministic: needs true or false, not 5"),
    ("resume=true", "resume: needs text or null, not true; for text write \"resume='true'\""),
    ("init_from=[a]", "init_from: needs text or null, not ['a']"),
    ("name={a:1}", "name: ..."),
    ("allow_targets=mymodels", "allow_targets: needs a list of texts, not 'mymodels'"),
    ("best=5", "best: needs keys with values, not 5"),
    ("best.mode=up", "best.mode: unknown value 'up'. Options: max, min"),
    ("schedules=5", "schedules: needs keys with values, not 5"),
    (
        "+schedules.weight_decay=0.1",
        "schedules.weight_decay: 0.1 is no option with a _target_; "
        "choose one: +scheduler@schedules.weight_decay=linear",
    ),
    ("optimizer.lr=abc", "optimizer.lr: needs a number, not 'abc'"),
    ("optimizer.lr=null", "optimizer.lr: needs a number, not null"),
    ("optimizer.betas=0.9", f"{BETAS} 0.9"),
    ("optimizer.betas=[0.9]", f"{BETAS} [0.9]"),
    ("model.hidden=[a]", "model.hidden: needs a list of whole numbers, not ['a']"),
    ("scheduler.min_ratio=low", "scheduler.min_ratio: needs a number, not 'low'"),
    ("tracker.project=2024", "tracker.project: needs text, not 2024; for text write \"tracker.project='2024'\""),
]

SYNTAX = [
    ("seed=[1", "seed: '[1' cannot be read (...); brackets and quotes must close; ..."),
    ("=3", "'=3' gives no key; write <key>=3"),
    ("seed", "'seed' gives no value; write seed=<value>"),
    ("adamw", "'adamw' gives no value; write optimizer=adamw or adamw=<value>"),
    ("a\\ b", "'a b' gives no value; write <key>=<value>"),
    ("seed=1,2", "seed: 1,2 are several values; add --multirun to train with each, or write a list: seed=[1,2]"),
    ("seed=${nope}", "seed: ${nope} cannot be resolved: Interpolation key 'nope' not found"),
    (
        "optimizer.lr=${oc.env:NO_SUCH_VARIABLE}",
        "optimizer.lr: ${oc.env:NO_SUCH_VARIABLE} cannot be resolved: "
        "Environment variable 'NO_SUCH_VARIABLE' not found",
    ),
    ("optimizer.lr=???", "optimizer.lr: needs a value; give optimizer.lr=<value>"),
    ("--foo", "hydrant train has no flag --foo... Flags: --cfg, ... --version"),
    ("--mutlirun seed=1", "hydrant train has no flag --mutlirun; did you mean '--multirun'... Flags: ..."),
    ("--cfg yaml", "hydrant train: --cfg/-c: invalid choice: 'yaml' (choose from 'job', 'hydra', 'all')"),
    ("--config-name nope", "--config-name: no config 'nope' in the folders of configs; see --info searchpath"),
    ("--experimental-rerun job.pickle", "hydrant train has no flag --experimental-rerun. Flags: --cfg, ..."),
]

DURATIONS = [
    ("duration=10epochs", f"duration: '10epochs' {DURATION}"),
    ("duration=-5", f"duration: -5 {DURATION}"),
    ("duration=null", f"duration: null {DURATION}"),
    ("duration=true", f"duration: true {DURATION}"),
    ("duration=0", "duration: 0 is no update at all; the shortest run is duration=1"),
    ("duration=1.5", "duration: 1.5 is not a whole number of updates; did you mean 1.5ep?"),
    ("duration=50%", "duration: '50%' is a share of itself; write 500, 10ep or 64000sa"),
    ("log_every=0", "log_every: 0 is less than one update; write null for never"),
    ("log_every=-1", f"log_every: -1 {CADENCE}"),
    ("eval_every=never", f"eval_every: 'never' {CADENCE}"),
    ("save_every=0ep", "save_every: '0ep' is less than one update; write null for never"),
    ("duration=10 save_every=1%", "save_every: '1%' is less than one update; write null for never"),
    (
        "duration=100 scheduler.warmup=5000",
        "scheduler.warmup: 5000 updates of warmup and 0 of cooldown do not fit into a run of 100 updates; "
        "shorten warmup, or lengthen duration",
    ),
    (
        "duration=100 scheduler.warmup=50% scheduler.cooldown=60%",
        "scheduler.cooldown: 60 updates of cooldown and 50 of warmup do not fit into a run of 100 updates; "
        "shorten cooldown, or lengthen duration",
    ),
    (
        "duration=100 scheduler=wsd scheduler.decay=90% scheduler.warmup=20%",
        "scheduler.decay: 90 updates of decay do not fit between warmup (20) and cooldown (0) in a run of 100 "
        "updates; shorten decay, or lengthen duration",
    ),
    ("scheduler.warmup=-1", "scheduler.warmup: -1 is no duration; write 500 (updates), ... 5% (of the run)"),
    ("scheduler=step scheduler.step_size=0", "scheduler.step_size: 0 is less than one update; give 1 or more"),
    (
        "scheduler=wsd scheduler.decay_shape=cosin",
        "scheduler.decay_shape: unknown shape 'cosin'; did you mean 'cosine'? Options: 1-sqrt, cosine, linear",
    ),
    ("scheduler.min_ratio=-1", "scheduler.min_ratio: needs a number from 0 on, not -1"),
]

VALUES = [
    ("global_batch_size=0", "global_batch_size: needs a number above 0, not 0"),
    ("keep_last=0", "keep_last: needs a number above 0, not 0"),
    ("max_grad_norm=-1", "max_grad_norm: needs a number above 0, not -1"),
    ("max_skipped=-1", "max_skipped: needs a number from 0 on, not -1"),
    ("limit_val_samples=0", "limit_val_samples: needs a number above 0, not 0"),
    (
        "micro_batch_size=24",
        "micro_batch_size: 24 samples on each of 1 rank(s) do not divide global_batch_size=64; "
        "these do: 1, 2, 4, 8, 16, 32, 64",
    ),
    (
        "global_batch_size=5000",
        "global_batch_size: 5000 is more than the 1437 training samples there are; give 1437 or fewer",
    ),
    ("limit_train_samples=10", "global_batch_size: 64 is more than the 10 ... (limit_train_samples); give 10 or fewer"),
    ("optimizer.lr=-1", "optimizer.lr: torch.optim.AdamW refuses it: Invalid learning rate: -1"),
    ("optimizer.betas=[2,0.9]", "optimizer.betas: torch.optim.AdamW refuses it: Invalid beta parameter at index 0: 2"),
    ("optimizer.eps=-1", "optimizer.eps: torch.optim.AdamW refuses it: Invalid epsilon value: -1"),
    ("optimizer=sgd optimizer.nesterov=true optimizer.momentum=0", "optimizer...: torch.optim.SGD refuses it: Nesterov..."),
    ("task.label_smoothing=2", "task.label_smoothing: needs a number from 0 to 1, not 2"),
    ("model.dropout=1.5", "model.dropout: needs a number from 0 to below 1, not 1.5"),
    ("model.hidden=[0]", "model.hidden: [0] has a layer of no units; give 1 or more"),
    ("model=convnet model.widths=[8,8,8,8,8]", "model.widths: 5 stages; an image of 8 pixels takes 1 to 4"),
    ("data.val_ratio=2", "data.val_ratio: 2 is not between 0 and 1"),
    ("data.num_classes=11", "data.num_classes: 11 is stated, but there are 10 classes; state that"),
    ("data.augment.max_shift=-1", "data.augment.max_shift: -1 is negative; 0 means no shift"),
    ("data=synthetic data.num_classes=0", "data.num_classes: 0 is below 1"),
    ("best.metric=val/f1", "best.metric: no evaluation gives 'val/f1'. Options: val/accuracy, val/loss"),
    ("best.metric=val/acuracy", "best.metric: no evaluation gives 'val/acuracy'; did you mean 'val/accuracy'?..."),
    ("best.metric=val/loss", "best.mode: val/loss is best where it is lowest; give best.mode=min"),
    ("name=a/b", "name: 'a/b' is no folder name; use letters, digits, '.', '_' and '-'"),
    ("name=..", "name: '..' is no folder name; use letters, digits, '.', '_' and '-'"),
    ("tracker=wandb tracker.mode=sometimes", "tracker.mode: unknown ...'sometimes'. Options: auto, disabled, offline, online"),
]

COMBINATIONS = [
    (
        "+scheduler@schedules.momentum=linear",
        "schedules.momentum: AdamW has no number 'momentum' to schedule; it has lr, eps, weight_decay",
    ),
    ("+scheduler@schedules.lr=linear", "schedules.lr: lr is scheduled by scheduler; remove it here"),
    ("optimizer=lbfgs precision=fp16", "precision: LBFGS evaluates the loss several times ... Use precision=bf16 or fp32"),
    ("compile=default compile.mode=fastest", "compile.mode: unknown mode 'fastest'. Options: default, max-autotune, ..."),
    ("compile=default compile.backend=nope", "compile.backend: unknown backend 'nope'. Options: ...inductor..."),
    (
        "compile=default compile.mode=max-autotune +compile.options.max_autotune=true",
        "compile.options: torch.compile takes options or mode=max-autotune, not both; use compile=default",
    ),
    (
        "compile=default +compile.options.epilogue_fusoin=true",
        "compile.options.epilogue_fusoin: unknown option of inductor 'epilogue_fusoin'; "
        "did you mean 'epilogue_fusion'... There are ... options",
    ),
    (
        f"model=convnet {SMALL} data.input_shape=[64]",
        "model: convnet needs images (C, H, W), not data.input_shape=[64]; use model=mlp",
    ),
    (
        "model=timm model.name=vit_tiny_patch16_224",
        "model: does not take the samples of data, of shape [1, 8, 8]: Input height (8) doesn't match model (224). "
        "Choose another model, or set its own keys to that shape",
    ),
    ("parallel.num_processes=2", "parallel.num_processes: ..."),
]

NAMES = [
    (
        "optimizer=timm optimizer.name=adan2",
        "optimizer.name: unknown timm optimizer 'adan2'; did you mean 'adan'... There are ... options",
    ),
    (
        "model=timm model.name=resnet81",
        "model.name: unknown timm model 'resnet81'; did you mean 'resnet18'... There are ... options",
    ),
    (
        "model=timm +model.kwargs.foo=1",
        "model.kwargs: timm's resnet18 refuses it: ResNet.__init__() got an unexpected keyword argument 'foo'",
    ),
    ("optimizer=timm optimizer.name=bnbadam", "optimizer.name: timm's bnbadam cannot be built (...); choose another ..."),
    ("optimizer._target_=os.system", f"optimizer._target_: 'os.system' {ALLOWED}"),
    ("model._target_=builtins.eval", f"model._target_: 'builtins.eval' {ALLOWED}"),
    ("model._target_=subprocess.run", f"model._target_: 'subprocess.run' {ALLOWED}"),
    ("model._target_=torch.os.system", f"model._target_: 'torch.os.system' {ALLOWED}"),
    ("model._target_=my_models.Net", f"model._target_: 'my_models.Net' {ALLOWED}"),
    ("+data.augment.hook={_target_:os.system}", f"data.augment.hook._target_: 'os.system' {ALLOWED}"),
    (
        "allow_targets=[my_models] model._target_=my_models.Net",
        "model._target_: no module 'my_models'; is it installed, or does it lie in this folder?",
    ),
    ("optimizer._target_=torch.optim.AdamWW", "optimizer._target_: torch.optim has no 'AdamWW'; did you mean 'AdamW'..."),
    ("optimizer._target_=torch.optim", "optimizer._target_: torch.optim is a module; needed is a class or a function"),
    (
        "optimizer._target_=torch.optim.SGD",
        "optimizer.betas: torch.optim.SGD has no argument 'betas'. Arguments: dampening, differentiable, ...",
    ),
]

FILES = [
    ("resume=nowhere", "resume: nowhere does not exist; give a run folder or one of its checkpoints/update_... folders"),
    ("resume=1", "resume: 1 does not exist; give a run folder or ..."),
    ("init_from=nowhere", "init_from: nowhere does not exist; give a run folder or ..."),
    ("data=image_folder", "data.root: data/image_folder/train is no folder; it should hold one folder of images per class"),
    (
        "data=mnist data.download=false",
        "data.root: MNIST is not in .../data/mnist/MNIST/raw (missing: ...); set data.root to ..., or data.download=true",
    ),
    ("hydra.run.dir=/proc/x", "hydra.run.dir: /proc/x cannot be made (...); give a folder that can be written: ..."),
]

SWEEPS = [
    ("-m seed=0,x", "seed: needs a whole number, not 'x' [job: seed=x; 1 of 2 cannot run]"),
    ("-m optimizer=adamm,sgd", "optimizer: no option 'adamm'; ... [job: optimizer=adamm; 1 of 2 cannot run]"),
    ("-m precision=3,bf16", "precision: no option 3. Options: bf16, fp16, fp32, tf32"),
    ("seed=0,1 -m optimizer.lr=high,1e-3", "optimizer.lr: needs a number, not 'high' [job: seed=0 optimizer.lr=high; 2 of 4 cannot run]"),
    ("-m seed=range(0,2) sead=1", "sead: no such key; did you mean 'seed'? ... 2 of 2 cannot run]"),
]

TRAIN = [*OPTIONS, *UNKNOWN_KEYS, *TYPES, *SYNTAX, *DURATIONS, *VALUES, *COMBINATIONS, *NAMES, *FILES, *SWEEPS]
"""After `train`."""

NO_CUDA = [
    ("precision=tf32", "precision: tf32 needs CUDA with compute capability 8.0 or more; this is cpu. Use precision=fp32"),
    ("compile=reduce_overhead", "compile: reduce_overhead records CUDA graphs and needs CUDA; use compile=default"),
]
"""After `train`, on a machine without CUDA."""

COMMANDS = [
    ("trian", "unknown command 'trian'; did you mean 'train'? Options: ..."),
    ("optimizer=adamw", "'optimizer=adamw' comes after a command: hydrant train optimizer=adamw"),
    ("--foo", "'--foo' comes after a command: hydrant train --foo"),
    ("preview --foo", "hydrant preview has no flag --foo. Flags: --json, --png"),
    ("preview --png", "hydrant preview: --png: expected one argument"),
    ("preview --png .", "--png: . cannot be written (Is a directory); give another"),
    ("preview --png /proc/x/y.png", "--png: /proc/x/y.png cannot be written (...); give another"),
    ("preview optimizer=adamm", f"optimizer: no option 'adamm'; ...Options: {OPTIMIZERS}"),
    ("preview seed=abc", "seed: needs a whole number, not 'abc'"),
    ("preview name=a/b", "name: 'a/b' is no folder name; use letters, digits, '.', '_' and '-'"),
    ("preview duration=0", "duration: 0 is no update at all; the shortest run is duration=1"),
    ("evaluate", "evaluate what? Give a run folder or a checkpoint: hydrant evaluate outputs/lr_study"),
    ("evaluate seed=1", "evaluate what? Give a run folder or a checkpoint: hydrant evaluate outputs/lr_study"),
    ("evaluate nowhere", "nowhere does not exist; give a run folder or one of its checkpoints/update_... folders"),
    ("evaluate nowhere --jsn", "hydrant evaluate has no flag --jsn; did you mean '--json'? Flags: --json"),
    ("export", "export what? Give a run folder: hydrant export outputs/lr_study --format onnx"),
    ("export nowhere", "nowhere does not exist; give a run folder or one of its checkpoints/update_... folders"),
    ("export nowhere --format onix", "--format: unknown format 'onix'; did you mean 'onnx'? Options: onnx, safetensors, ..."),
    ("export nowhere --format", "hydrant export: --format: expected one argument"),
]
"""After `hydrant`."""
