"""What a run trains, how and where: the first lines that it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydrant.terminal.console import log_fields

if TYPE_CHECKING:
    from hydrant.runs.reporter import RunReporter

PRELOAD = {"Overview": (f"{__name__}.lines",)}


class Overview:
    """Prints these lines before the parts of a run are built."""

    def on_prepared(self, reporter: RunReporter) -> None:
        from hydrant.extensions.overview.lines import start_lines  # imports torch

        log_fields(start_lines(reporter.job, reporter.plan))
