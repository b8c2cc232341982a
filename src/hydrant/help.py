"""The help screens. The options are read from the conf folders, so a user's own appear too."""

from __future__ import annotations

import textwrap

from hydrant.options import group_options

WIDTH = 110

TEXTS = {
    "train": """
Train a model; with --multirun, one for every combination of the values given.

  python train.py optimizer=adamw scheduler=cosine      choose options of the groups below
  python train.py optimizer.lr=3e-3 duration=20ep       change any key; conf/train.yaml explains each
  python train.py name=lr_study                         folder outputs/lr_study; the same again resumes it
  python train.py --multirun optimizer=adamw,sgd seed=0,1
  python train.py --multirun sweep=optimizers           a ready grid; values given beside it come first
  python train.py debug=smoke                           a few updates of everything
  python train.py --cfg job                             print the config and stop
  eval "$(python train.py -sc install=bash)"            complete groups, options and keys with Tab

Exit status: 0 finished, 1 the run failed, 2 the config is wrong, 130 Ctrl-C and 143 SIGTERM (resumable).""",
    "preview": """
Show what a config would do, without training: updates and epochs, parameter groups, parameters and FLOPs,
and every schedule. Takes the overrides of train, and

  --json        print {"total_updates": N, "schedules": {"main.0.lr": [N floats]}} and nothing else
  --png FILE    draw the schedules into a picture

  hydrant preview scheduler=wsd scheduler.warmup=5% --png wsd.png""",
    "evaluate": """
Evaluate a run's newest checkpoint, or a given one, on its validation set.

  hydrant evaluate outputs/lr_study                               the newest checkpoint
  hydrant evaluate outputs/lr_study/checkpoints/best              the best one
  hydrant evaluate outputs/lr_study eval_batch_size=64 --json     overrides as in train
  hydrant evaluate outputs/lr_study --weights ema                 the averaged weights (averaging=ema)""",
    "export": """
Write a run's model for use elsewhere, and check that it gives the same outputs.

  hydrant export outputs/lr_study --format safetensors       weights; load with safetensors.torch.load_file
  hydrant export outputs/lr_study --format torch_export      load with torch.export.load(...).module()
  hydrant export outputs/lr_study --format onnx              needs pip install 'hydrant[onnx]'

  --output FILE   default: <run>/export/model.<safetensors, pt2, onnx>
  --weights ema   the averaged weights (averaging=ema)""",
    "diagnose": """
Show what torch.compile makes of a config: graph breaks with their lines and what helps, the first stage (Dynamo,
AOTAutograd, the backend) that fails or computes something else than eager, and the speed of each mode.
Takes the overrides of train, and

  --no-timing   graph breaks and stages only
  --updates N   updates to time in each mode, twice (10)
  --json        print {"findings": [...], "graph_breaks": [...], "stages": [...], ...} and nothing else

  hydrant diagnose model=convnet data=synthetic --no-timing
  hydrant diagnose experiment=vit_tiny_fake compile.scope=blocks

Exit status: 0 nothing to mend, 1 a finding, 2 the config is wrong.""",
    "bench": """
Compare precisions and compile settings, or the values of any keys: a few updates of every combination, each
in a fresh process, beside the same not compiled. Unless given: experiment=vit_fake (without a GPU
vit_tiny_fake; none beside data, model or task), and the precisions and compile options that fit the machine.

  hydrant bench precision=fp32,bf16 compile=eager,default,blocks
  hydrant bench experiment=digits_convnet compile=default compile.backend=aot_eager,inductor

  --repeats N (3)  --updates N (10), which are timed  --warmup N (3), before them
  --output FOLDER  bench.json, bench.csv and bench.png; default: outputs/<name, or date and time>
  --csv FILE, --png FILE   copies elsewhere      --json   print bench.json instead of the table
  --wandb          log the table, the picture and the figures to a W&B run (tracker.* as in train)

Exit status: 0 all cells give eager's result, 1 one fails or differs, 2 nothing can run, 130 and 143 stopped.""",
    "status": """
Show how far the runs of a sweep are: queued, running with update, loss and time left, finished with the
result, failed with the reason. Takes folders of sweeps and runs, and reads nothing else.

  hydrant status multirun/lr_study
  hydrant status multirun/lr_study --watch    draw it again and again, until nothing is queued or running
  hydrant status multirun/lr_study --json     {"multirun/lr_study": [{"run": ..., "state": ...}, ...]}

A run whose process died without a word is `killed`, and `running elsewhere` if it was on another machine.""",
    "compare": """
Compare runs: a table with the keys in which they differ, groups over seeds with means, 95 % intervals and
paired tests, what is not comparable, and the winner. Takes run folders, sweeps, globs of them, runs in W&B.

  hydrant compare multirun/lr_study                                by all keys that differ but the seed
  hydrant compare outputs/a 'multirun/*' --by optimizer,scheduler --baseline optimizer=sgd,scheduler=cosine
  hydrant compare multirun/lr_study --target 'val/accuracy>=0.95' --html report.html
  hydrant compare multirun/lr_study 'wandb:me/lr_study?state=finished&optimizer=adamw,sgd'

  --by KEYS           what makes a group (else: every key that differs, but the seed)
  --metric METRIC     its last value is compared (else: what decided the best checkpoints)  --mode max|min
  --baseline GROUP    the others are tested against it (else: against the winner)
  --target TARGET     updates, samples and seconds to it, performance profiles, the AlgoPerf score
  --price-per-hour N  of what a run trains on: the page then shows curves over cost, too
  --html FILE         write everything as one page that works offline
  --json, --csv       print everything, or a line a run, instead of the tables
  --wandb             save a workspace and a report of the same groups in W&B (needs a login)

Exit status: 0 compared, 2 the command line is wrong or there are no runs.""",
    "agent": """
Train what a W&B sweep hands out, one run after the other, until there is no more. `wandb sweep FILE` makes a
sweep and tells its name; conf/wandb_sweep/ holds files for it. Overrides hold for every run.

  wandb sweep --project lr_study conf/wandb_sweep/grid.yaml
  hydrant agent ENTITY/lr_study/SWEEP
  hydrant agent ENTITY/lr_study/SWEEP --count 10 parallel.num_processes=2 duration=20ep

  --count N   end after so many runs

A run's folder is outputs/SWEEP/RUN. Runs that were interrupted here go on first.
Exit status: 0 all is well, 1 a run failed, 2 there is no such sweep, 130 Ctrl-C and 143 SIGTERM (resumable).""",
    "sync": """
Send what runs have kept offline to W&B, each part once. Takes run folders, sweeps, and globs of them; without any,
outputs and multirun. A run that still goes on is left out, and one that was sent is not sent again: the same command
may be given at any time, also after it was killed.

  hydrant sync multirun/lr_study --jobs 8
  hydrant sync --dry-run                   what would be sent; needs no key

  --jobs N (4)         how many runs at a time
  --timeout N (3600)   seconds after which an upload is given up; it may be repeated
  --dry-run            send nothing
  --json               print {"<run folder>": {"state": ..., "detail": ...}} instead of the table

Exit status: 0 nothing is left to send but of runs that go on, 1 an upload failed, 2 no key or no such folder.""",
    "list": """
Show what this machine can do.

  hydrant list backends           the backends of torch.compile (compile.backend=...), and what they lack here
  hydrant list backends --json    {"inductor": null, "tvm": "needs tvm: ..."}""",
}


def groups() -> str:
    """Every config group with its options."""
    options = group_options()
    width = max(map(len, options))
    entries = [
        textwrap.fill(
            ", ".join(names),
            width=WIDTH,
            initial_indent=f"  {group:<{width}}  ",
            subsequent_indent=" " * (width + 4),
            break_on_hyphens=False,
        )
        for group, names in options.items()
    ]
    return "\n".join(["Groups and their options:", *entries])
