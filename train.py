"""Train a model: `python train.py optimizer=adamw scheduler=cosine`; `--help` lists the options."""

import sys

from hydrant.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["train", *sys.argv[1:]]))
