"""The league of optimizers:    python -m examples.league {run,collect,studies,page} [MODEL...]"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.__main__ import environment
from examples.league import page, pictures, results, studies, sweeps


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.league", description=__doc__)
    what = (
        "run: train; collect: read multirun/ into results.json; studies: read its studies into studies.json; "
    )
    what += "page: write the page and its pictures"
    parser.add_argument("what", choices=["run", "collect", "studies", "page"], help=what)
    names = [model.name for model in sweeps.MODELS]
    parser.add_argument("models", nargs="*", help=f"of {', '.join(names)}; none: all")
    options = parser.parse_args()
    if options.what == "run":
        for name in options.models or names:
            sweeps.train(results.model_of(name))
    elif options.what == "collect":
        results.collect(Path("multirun"), environment())
    elif options.what == "studies":
        studies.collect(Path("multirun"))
    else:
        _, runs = results.load()
        tables = {name: results.standings(phases["tuning"], phases["fresh"]) for name, phases in runs.items()}
        pictures.draw({name: phases["tuning"] for name, phases in runs.items()}, tables)
        page.PAGE.write_text(page.text(), encoding="utf-8")


if __name__ == "__main__":
    main()
