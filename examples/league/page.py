"""RESULTS.md, written from results.json."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.document import place
from benchmarks.figures import rounded
from examples.league import studies
from examples.league.pictures import LOSSES, RATES
from examples.league.results import BASELINE, TOLERANCE, Standing, load, model_of, noise, standings
from examples.league.sweeps import MODELS, fresh_words, tuning_words
from hydrant.extensions.compare.statistics import seeds_needed

PAGE = Path(__file__).with_name("RESULTS.md")

HEAD = """\
# Twelve optimizers, tuned equally

`python -m examples.league page` writes this page from
[results.json](results.json); do not edit it by hand.
[Choosing an optimizer](../../docs/guides/choosing-an-optimizer.md) explains the terms.

## Question

Which of 12 optimizers reaches the lowest validation loss, if the learning rate of each is tuned with the same number of
runs? And is it the same one on four small problems?
"""

LIMITS = """\
## What it cannot tell

- **Larger models, longer runs.** All runs take seconds. A method that pays off after thousands of updates, such as a
  preconditioner or a slow average, has no time here.
- **The time.** All optimizers make the same number of updates. One update of some costs as much as a hundred of others:
  see [the cost of an update](../../docs/guides/optimizers.md#what-an-optimizer-costs).
- **Other settings.** Only the learning rate is tuned. Weight decay, momentum and warmup are those of each option, and
  favour the optimizer that they suit.
- **Learning rates between the tried ones.** They lie a factor of about three apart, and an optimizer with a narrow
  basin loses more between them than one with a wide basin.
- **The test set.** The loss is the lowest one on the validation set, which also chose the learning rates.
- **Equality.** A p-value above 0.05 does not say that two optimizers are equal. Few seeds find only differences that
  are large compared with the noise.
"""


def text() -> str:
    """Return the page."""
    measured, sweeps = load()
    tables = {name: standings(phases["tuning"], phases["fresh"]) for name, phases in sweeps.items()}
    parts = [
        HEAD,
        "\n".join(_protocol(measured)),
        "\n".join(_results(tables)),
        "\n".join(_summary(tables)),
        studies.section(),
        LIMITS,
    ]
    return "\n".join(parts)


def _protocol(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "## Protocol\n"
    yield _paragraph(
        "1. *Tuning.* Each optimizer trains with the learning rates 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, "
        "3e-2, 1e-1 and 3e-1, after "
        "a warmup of 5 % and with a cosine decay. The one with the lowest mean of `val/loss` is its "
        "best. It is the same "
        "number of runs for each.",
        indent="   ",
    )
    yield _paragraph(
        f"2. *Fresh seeds.* Each optimizer trains at its best learning rate with {_seeds('fresh')} seeds that tuned "
        "nothing. The tables show these runs only, so the choice of the learning rate does not flatter them.",
        indent="   ",
    )
    yield ""
    yield _paragraph(
        "All other settings are those of the options in `conf/optimizer`. The loss is the lowest `val/loss` of a run's "
        "evaluations. `TORCHDYNAMO_DISABLE=1` is set, because `kron` would compile its update in each run. "
        "`python -m examples.league run` runs these commands. The results are of "
        f"{place(measured)}:"
    )
    yield "\n```text"
    for model in MODELS:
        yield _command(tuning_words(model))
    yield "\n# and with the fresh seeds, for each best learning rate of a model:"
    yield _command(fresh_words(MODELS[0], ["OPTIMIZERS"], "LR"))
    yield "```\n"
    yield _paragraph(
        f"The experiment has five seeds for every learning rate. Here the tuning has {_seeds('tuning')}, so that "
        "everything fits into an hour and a half of a busy machine; all optimizers of a model have the same."
    )


def _results(tables: Mapping[str, Sequence[Standing]]) -> Iterator[str]:
    yield "\n## Results\n"
    yield _paragraph(
        f"*Difference* is the mean over seeds of the loss minus that of `{BASELINE}` with the same seed, with its 95 % "
        "interval; *p* is that of the paired t-test, corrected for the number of optimizers (Holm). "
        "*Basin* is the factor "
        "between the largest and the smallest learning rate whose loss in the tuning is at most "
        f"{100 * TOLERANCE:.0f} % above the best one; `≥`: it may be wider, because it reaches an end "
        "of the tried rates. "
        "`*`: the best rate is at an end, so a better one may lie outside."
    )
    about = "Loss over the learning rate of each optimizer, in multiples of the lowest loss on the model"
    yield f"\n![{about}](../../docs/images/{RATES})\n"
    yield f"![Loss of each optimizer with fresh seeds, with 95 % intervals](../../docs/images/{LOSSES})\n"
    for name, table in tables.items():
        yield f"### {_title(name)}\n"
        yield "| optimizer | best lr | val/loss | 95 % interval | difference | p | basin |"
        yield "| --- | --- | --- | --- | --- | --- | --- |"
        yield from (_row(standing) for standing in table)
        spread = noise(table)
        yield (
            "\n"
            + _paragraph(
                f"Noise over seeds, pooled: a standard deviation of {_number(spread.std)} ({_number(spread.low)} to "
                f"{_number(spread.high)}).{_power(table, spread.std)}"
            )
            + "\n"
        )


def _row(standing: Standing) -> str:
    loss, difference, basin = standing.loss, standing.difference, standing.basin
    interval = "" if loss.low is None or loss.high is None else f"{loss.low:.4f} to {loss.high:.4f}"
    compared = p = ""
    if difference is not None and difference.mean is not None:
        compared = f"{difference.mean:+.4f}"
        if difference.low is not None and difference.high is not None:
            compared += f" ({difference.low:+.4f} to {difference.high:+.4f})"
            p = "< 0.001" if (standing.p_holm or 0) < 0.001 else f"{standing.p_holm:.3f}"
    width = ""
    if basin is not None:
        is_open = basin.is_low_open or basin.is_high_open
        width = f"{'≥ ' if is_open else ''}{basin.factor:.2g}"
    rate = f"{standing.lr:g}{'*' if standing.is_at_end else ''}"
    return f"| `{standing.optimizer}` | {rate} | {_number(loss.mean)} | {interval} | {compared} | {p} | {width} |"


def _power(table: Sequence[Standing], std: float | None) -> str:
    first, second = (standing.loss.mean for standing in table[:2])
    if first is None or second is None or not std:
        return ""
    seeds = seeds_needed(second - first, 2**0.5 * std)
    needed = "more than 10,000" if seeds is None else str(seeds)
    return (
        " A true difference as large as that of the first two would need "
        f"{needed} seeds of each to be found in 80 of 100 cases."
    )


def _summary(tables: Mapping[str, Sequence[Standing]]) -> Iterator[str]:
    """Yield the sentences that the numbers decide, and a table of the places."""
    yield "## What it shows\n"
    winners = {name: table[0].optimizer for name, table in tables.items()}
    listed = "; ".join(f"{_title(name)}: `{optimizer}`" for name, optimizer in winners.items())
    first = "The same optimizer is" if len(set(winners.values())) == 1 else "No optimizer is"
    yield _item(f"{first} first on all problems ({listed}).")
    optimizers = sorted({standing.optimizer for table in tables.values() for standing in table})
    for sign, word in ((-1, "Lower"), (1, "Higher")):
        counts = {optimizer: len(_clear(tables, optimizer, sign)) for optimizer in optimizers}
        most = sorted((o for o in optimizers if counts[o]), key=lambda o: -counts[o])
        shown = ", ".join(f"`{optimizer}` on {counts[optimizer]}" for optimizer in most) or "none"
        yield _item(f"{word} loss than `{BASELINE}` with p below 0.05, by number of problems: {shown}.")
    ends = [
        f"`{s.optimizer}` ({_title(name)})" for name, table in tables.items() for s in table if s.is_at_end
    ]
    yield _item(f"Best rate at an end of the tried ones: {', '.join(ends) or 'none'}.")
    rates = {o: [s.lr for table in tables.values() for s in table if s.optimizer == o] for o in optimizers}
    factors = {o: max(found) / min(found) for o, found in rates.items()}
    moved = ", ".join(f"`{o}` {factors[o]:.0f}" for o in sorted(optimizers, key=lambda o: -factors[o]))
    yield _item(
        f"A rate that is best on one problem is not best on another. Factor between the best ones: {moved}."
    )
    yield "\nThe places of each optimizer, and their mean:\n"
    yield f"| optimizer | {' | '.join(map(_title, tables))} | mean |"
    yield f"| --- {'| --- ' * (len(tables) + 1)}|"
    places = {o: [[s.optimizer for s in table].index(o) + 1 for table in tables.values()] for o in optimizers}
    for optimizer, found in sorted(places.items(), key=lambda item: sum(item[1])):
        yield f"| `{optimizer}` | {' | '.join(map(str, found))} | {sum(found) / len(found):.3g} |"
    yield ""


def _clear(tables: Mapping[str, Sequence[Standing]], optimizer: str, sign: int) -> list[str]:
    """Return the models on which the optimizer clearly has a lower (-1) or higher (1) loss than the baseline."""
    return [
        name
        for name, table in tables.items()
        for standing in table
        if standing.optimizer == optimizer
        and standing.p_holm is not None
        and standing.p_holm < 0.05
        and standing.difference is not None
        and (standing.difference.mean or 0.0) * sign > 0
    ]


def _command(words: Sequence[str]) -> str:
    return "python train.py " + " ".join(f"'{word}'" if set(word) & set(" {}") else word for word in words)


def _seeds(phase: str) -> str:
    """Return how many seeds the models have, such as `5 or 3`."""
    counts = {len(model.fresh_seeds if phase == "fresh" else model.tuning_seeds) for model in MODELS}
    return " or ".join(map(str, sorted(counts, reverse=True)))


def _number(value: float | None) -> str:
    return "" if value is None else rounded(value)


def _title(name: str) -> str:
    return model_of(name).title


def _item(text: str) -> str:
    return _paragraph(f"- {text}", indent="  ")


def _paragraph(text: str, indent: str = "") -> str:
    """Break a text into lines; `indent` begins all but the first."""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
