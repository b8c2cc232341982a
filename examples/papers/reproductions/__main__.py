"""Repeat published results and write docs/reproductions.md. The same command continues."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.__main__ import environment
from examples.papers.reproductions import page, runner
from examples.papers.reproductions.table import REPRODUCTIONS


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts/reproduce", description=__doc__)
    names = [one.name for one in REPRODUCTIONS if one.sweeps]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; none: all")
    parser.add_argument("--miniature", action="store_true", help="try it in seconds, and keep no result")
    parser.add_argument("--folder", type=Path, help="where multirun/ is (default: here)")
    parser.add_argument("--page", action="store_true", help="only write the page and its pictures")
    options = parser.parse_args(words)
    if unknown := sorted(set(options.names) - set(names)):
        parser.error(f"no reproduction {', '.join(unknown)}; choose from {', '.join(names)}")
    folder = options.folder or runner.ROOT / ("build/miniatures" if options.miniature else "")
    for one in [] if options.page else REPRODUCTIONS:
        if one.name in (options.names or names):
            measured = environment()
            runner.train(one, folder, miniature=options.miniature)
            content = {"measured": measured, **runner.read(one, folder, miniature=options.miniature)}
            print(
                *(
                    page.row(finding.paper or one.paper, finding)
                    for finding in page.findings_of(one, content)
                ),
                sep="\n",
            )
            if not options.miniature:
                runner.write(one, content)
    if not options.miniature:
        page.write()
        page.draw()


if __name__ == "__main__":
    sys.exit(main())
