"""The help screens. The options are read from the conf folders, so they include a user's own options."""

from __future__ import annotations

import re
import textwrap

from hydrant.config.groups import group_options

WIDTH = 110

_SAVED_RUN, _ONE_RUN = "data|precision|task", "(?!sweep$|hydra/).*"
TAKE_GROUPS = {
    "train": ".*",
    "race": "(?!sweep$|hydra/sweeper).*",
    **dict.fromkeys(("preview", "eject", "diagnose", "bench", "agent"), _ONE_RUN),
    **dict.fromkeys(("evaluate", "predict"), _SAVED_RUN),
}
"""The commands that take the overrides of a config, with a pattern of the groups that they read."""

TEXTS = {
    "init": """
Write a project that trains, tests and compares at once: conf/ with an experiment, a package with an own data set,
model, task, metric and hook, tests, and a README with its commands. No file is overwritten.

  hydrant init my_project             the package is my_project too
  hydrant init .                      in this folder, with its name

The project's package is trusted on this machine from then on, see `hydrant trust --help`.

Exit status: 0 written, 2 the name cannot be a package's, or a file is there already.""",
    "trust": """
Trust a project of yours: where its root is the working folder, configs may name its packages without
allow_targets, and the variables in its .env are read. Trust only code that you wrote or read.

  hydrant trust                       the project in this folder, with the packages that it has now
  hydrant trust FOLDER
  hydrant trust --remove [FOLDER]     no longer
  hydrant trust --list                all that are trusted

The list is in your own config folder ($XDG_CONFIG_HOME/hydrant/trusted.json, or ~/.config/...), so a project cannot
trust itself, and a copy of a project in another folder is not trusted.""",
    "tokenize": """
Make the tokens of text files, for data=tokens: a folder of .bin files and tokens.json, the vocabulary. The folder
appears when it is complete. Texts may be larger than the memory.

  hydrant tokenize texts/ --out data/texts                        files in a folder and below, in the order of names
  hydrant tokenize shakespeare.txt --out data/shakespeare --encoding char
  hydrant tokenize texts/ --out data/texts --encoding gpt2        an encoding of tiktoken; needs the extra `tiktoken`
  hydrant train data=tokens data.root=data/texts

  --encoding NAME    bytes (default), char (a token for each character that occurs), gpt2, cl100k_base, ...
  --val RATIO        of the text to validate on: whole lines at its end (default 0.1)
  --shard-size N     tokens in a file (default 100,000,000)
  --suffixes LIST    of the files that are read in folders (default .txt,.md,.rst)

Each file is a document. Exit status: 0 written, 1 a file is no text, 2 the command line is wrong, 130 Ctrl-C.""",
    "train": """
Train a model; with --multirun, one for every combination of the given values.

  {train} optimizer=adamw scheduler=cosine      choose options of the groups below
  {train} optimizer.lr=3e-3 duration=20ep       change any key; `hydrant explain` shows and explains all
  {train} name=lr_study                         folder outputs/lr_study; the same command resumes it
  {train} --multirun optimizer=adamw,sgd seed=0,1
  {train} --multirun sweep=optimizers           a ready grid, whose values you can replace
  {train} debug=smoke                           a few updates of every part
  {train} --cfg job                             print the config and stop
  eval "$(hydrant -sc install=bash)"                complete groups, options and keys with Tab

Exit status: 0 finished, 1 the run failed, 2 the config is wrong, 130 Ctrl-C and 143 SIGTERM (resumable).""",
    "race": """
Train two settings A and B with the same seeds, pair by pair, until one is better. It looks at the results after every
pair; all looks together give a wrong verdict in at most 5 % of the races. The same command continues it.

  hydrant race optimizer=adamw optimizer=sgd,optimizer.lr=0.1 name=duel duration=10ep
  hydrant race model.dropout=0 model.dropout=0.1 best.metric=val/loss best.mode=min --negligible 0.002

  --first-seed N (0)     the seeds are N, N + 1, ...; take seeds that tuned nothing
  --max-seeds N (20)     pairs at most
  --max-seconds N        start no pair after so many seconds of this start
  --negligible D         also end when the difference is certainly smaller than D
  --alpha P (0.05)       the probability of a wrong verdict
  --seeds-at-once N (1)  pairs that start together, for hydra/launcher=local and others

The last value of best.metric decides. race.json in the sweep's folder has the verdict and the interval after each
pair; compare reads the runs.
Exit status: 0 ended, with or without a verdict, 1 a run failed, 2 the config is wrong, 130 and 143 resumable.""",
    "preview": """
Show what a config would do, without training: updates and epochs, parameter groups, parameters and FLOPs,
and every schedule. Takes the overrides of train, and

  --json        print {"total_updates": N, "schedules": {"main.0.lr": [N floats]}} and nothing else
  --png FILE    draw the schedules into a picture

  hydrant preview scheduler=wsd scheduler.warmup=5% --png wsd.png""",
    "evaluate": """
Evaluate the newest checkpoint of a run, or another one, on the validation set or another split.

  hydrant evaluate outputs/lr_study                               the newest checkpoint
  hydrant evaluate outputs/lr_study --weights best                the best one; or give its folder
  hydrant evaluate outputs/lr_study --split test                  val, test, train or another set by its name
  hydrant evaluate outputs/lr_study eval_batch_size=64 --json     overrides as in train
  hydrant evaluate outputs/lr_study --weights ema                 the averaged weights (averaging=ema)""",
    "predict": """
Write what the model of a run predicts: for image files, folders of them, a CSV file or tensors, prepared as in the
run's evaluations, or for a split of its data. A row for each sample; classes by name.

  hydrant predict outputs/pets photos/ --out predictions.csv      all images in a folder and below
  hydrant predict outputs/pets a.jpg b.jpg                        print CSV
  hydrant predict outputs/pets test --out predictions.npz         a split, with its targets
  hydrant predict outputs/prices new_houses.csv --out prices.csv  a run of data=csv
  hydrant predict outputs/digits digits.npy --out digits.jsonl    tensors: .pt, .npz, .npy

  --out FILE         .csv or .jsonl: a row for each sample; .npz: arrays, also probabilities and logits
  --probabilities    columns for the probability of each class
  --weights WHICH    best, last, or ema for the averaged weights (default: those of the newest checkpoint)
  --batch-size N     samples at once (default: eval_batch_size of the run)

A command that was killed continues when it is started again, and then writes the same file. Other words are overrides
as in train: data.on_error=skip leaves out damaged images.

Exit status: 0 predicted, 1 a file is damaged, 2 the command line is wrong, 130 Ctrl-C.""",
    "export": """
Write the model of a run for use elsewhere, and check that it gives the same outputs.

  hydrant export outputs/lr_study --format safetensors       weights; load with safetensors.torch.load_file
  hydrant export outputs/lr_study --format torch_export      load with torch.export.load(...).module()
  hydrant export outputs/lr_study --format onnx              needs the extra `onnx`

  --output FILE   default: <run>/export/model.<safetensors, pt2, onnx>
  --weights ema   the averaged weights (averaging=ema)""",
    "eject": """
Write a run as one file of plain PyTorch: data, model, loss, optimizer, schedule, loop, evaluation, checkpoints. It
trains what train does with these overrides, bit for bit, and imports nothing of Hydrant.

  hydrant eject optimizer=sgd scheduler=linear --out run.py
  python run.py                       again: continues; it writes metrics.jsonl into outputs/<name>

  --out FILE   default: run.py; an existing file is not overwritten

An option that cannot be ejected yet is refused with its key.
Exit status: 0 written, 2 the config is wrong or cannot be ejected.""",
    "diagnose": """
Show what torch.compile does with a config: graph breaks with their lines and remedies, the first stage
(Dynamo, AOTAutograd, the backend) that fails or differs from eager, and the speed of each mode.
Takes the overrides of train, and

  --no-timing   graph breaks and stages only
  --updates N   updates to time in each mode, twice (10)
  --json        print {"findings": [...], "graph_breaks": [...], "stages": [...], ...} and nothing else

  hydrant diagnose model=convnet data=synthetic --no-timing
  hydrant diagnose experiment=vit_tiny_fake compile.scope=blocks

Exit status: 0 no findings, 1 findings, 2 the config is wrong.""",
    "bench": """
Compare precisions and compile settings, or the values of any keys: a few updates of every combination in a
new process, with and without torch.compile. Defaults: experiment=vit_fake (vit_tiny_fake without a GPU; none
if data, model or task is given), and the precisions and compile options that the machine supports.

  hydrant bench precision=fp32,bf16 compile=eager,default,blocks
  hydrant bench experiment=digits_convnet compile=default compile.backend=aot_eager,inductor

  --repeats N (3)  --warmup N (3): updates that are not timed  --updates N (10): updates that are timed
  --output FOLDER  bench.json, bench.csv and bench.png; default: outputs/<name, or date and time>
  --csv FILE, --png FILE   further copies        --json   print bench.json instead of the table
  --wandb          log the table, the picture and the numbers to a W&B run (tracker.* as in train)

Exit status: 0 all results equal eager, 1 one fails or differs, 2 nothing can run, 130 and 143 stopped.""",
    "status": """
Show the progress of a sweep's runs: queued, running with update, loss and time left, finished with the
result, failed with the reason. Takes folders of sweeps and runs.

  hydrant status multirun/lr_study
  hydrant status multirun/lr_study --watch    update the table until nothing is queued or running
  hydrant status multirun/lr_study --json     {"multirun/lr_study": [{"run": ..., "state": ...}, ...]}

A run whose process was killed is `killed`. A run on another machine, which cannot be checked from here, is
`running elsewhere`.""",
    "compare": """
Compare runs: a table with the keys in which they differ, groups over seeds with means, 95 % intervals and
paired tests, warnings of unfair comparisons, and the winner. Takes run folders, sweeps, globs, and W&B runs.

  hydrant compare multirun/lr_study                                by all keys that differ but seed and fold
  hydrant compare outputs/a 'multirun/*' --by optimizer,scheduler --baseline optimizer=sgd,scheduler=cosine
  hydrant compare multirun/lr_study --target 'val/accuracy>=0.95' --html report.html
  hydrant compare multirun/lr_study 'wandb:me/lr_study?state=finished&optimizer=adamw,sgd'

  --by KEYS           the keys that make a group (default: every key that differs, except seed and fold)
  --metric METRIC     compare its last value (default: the metric of the best checkpoints)  --mode max|min
  --baseline GROUP    test the others against it (default: against the winner)
  --target TARGET     updates, samples and seconds to reach it, performance profiles, the AlgoPerf score
  --against TARGET    test which groups reach it on average; --sigma S: the known noise of a run (a z-test);
                      --critical C: what margin * sqrt(n) must reach then, such as 0.004
  --difference D      also say how many seeds a true difference of D needs
  --tolerance T       how much worse than the best a learning rate in the basin may be (default: the noise)
  --tuned KEYS        the keys whose values are trials of tuning (default: those of optimizers and schedules)
  --scale SIZE        fit the loss over parameters, compute or a key; check the prediction of the largest size
  --price-per-hour N  the price of one run's machine: the page then shows curves over cost too
  --html FILE         write everything as one page that works offline
  --json, --csv       print everything, or one line per run, instead of the tables
  --wandb             save a workspace and a report of the same groups in W&B (needs a login)

Exit status: 0 compared, 2 the command line is wrong or there are no runs.""",
    "agent": """
Train the runs that a W&B sweep hands out, one after the other, until there are no more. `wandb sweep FILE`
makes a sweep and prints its path; `hydrant explain wandb_sweep` lists examples of such files. Overrides apply to
every run.

  hydrant explain wandb_sweep=grid > grid.yaml
  wandb sweep --project lr_study grid.yaml
  hydrant agent ENTITY/lr_study/SWEEP
  hydrant agent ENTITY/lr_study/SWEEP --count 10 parallel.num_processes=2 duration=20ep

  --count N   stop after N runs

A run's folder is outputs/SWEEP/RUN. Runs that were interrupted here are resumed first.
Exit status: 0 no run failed, 1 a run failed, 2 no such sweep, 130 Ctrl-C and 143 SIGTERM (resumable).""",
    "sync": """
Send the offline data of runs to W&B. Takes run folders, sweeps, and globs of them; by default outputs and
multirun. Running runs are left out. Nothing is sent twice, so the command may be repeated at any time, also
after it was killed.

  hydrant sync multirun/lr_study --jobs 8
  hydrant sync --dry-run                   show what would be sent; needs no key

  --jobs N (4)         runs at a time
  --timeout N (3600)   seconds after which an upload stops; the next command continues it
  --dry-run            send nothing
  --json               print {"<run folder>": {"state": ..., "detail": ...}} instead of the table

Exit status: 0 everything is sent except running runs, 1 an upload failed, 2 no key or no such folder.""",
    "schema": """
Write JSON schemas by which editors (yaml-language-server) complete and check the files of conf folders: options
by name, keys with types, defaults and explanations. Your own options are included, so run it again after changes.

  hydrant schema                  into .schemas/: config.json for experiments and sweeps, model.json for conf/model ...
  hydrant schema --out FOLDER

A project of `hydrant init` names them in .vscode/settings.json. Elsewhere, a file names its own in a comment:
  # yaml-language-server: $schema=../../.schemas/model.json""",
    "explain": """
Print the YAML files that hold and explain every option and key, each with its path: from your conf folder, else from
Hydrant's.

  hydrant explain                       the top-level keys (train.yaml), such as duration and global_batch_size
  hydrant explain optimizer             the options of a group, with a line about each
  hydrant explain data=csv              an option, with what it includes
  hydrant explain optimizer.momentum    a key: its default in each option that has it
  hydrant explain wandb_sweep=grid      a file for `wandb sweep`""",
    "list": """
List the backends of torch.compile (compile.backend=...), and what each lacks on this machine.

  hydrant list                    a table; the same as `hydrant list backends`
  hydrant list backends --json    {"inductor": null, "tvm": "needs tvm: ..."}""",
}


def groups(command: str) -> str:
    """Return the config groups that a command reads, with their options; "" for a command that reads none."""
    pattern = TAKE_GROUPS.get(command, "")
    options = {group: names for group, names in group_options().items() if re.fullmatch(pattern, group)}
    if not options:
        return ""
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
    return "\n".join(["\n\nGroups and their options:", *entries])
