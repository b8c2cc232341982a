"""Train a model: `python train.py optimizer=adamw scheduler=cosine`; `--help` lists the options."""

import sys

from hydrant.cli import run

if __name__ == "__main__":
    run(["train", *sys.argv[1:]])
