"""How `compare` writes numbers in its sentences, and the results of its statistical tests."""

from hydrant.terminal.text import format_metric, number


def two_digits(value: float) -> str:
    """Return a number of a sentence, where more than two digits say nothing.

    >>> two_digits(-0.05152), two_digits(-0.0000584), two_digits(12345.6)
    ('-0.052', '-0.000058', '12000')
    """
    rounded = float(f"{value:.2g}")
    return f"{rounded:.7f}".rstrip("0") if 1e-6 <= abs(rounded) < 1e-4 else number(rounded)


def signed(value: float | None) -> str:
    return "-" if value is None else format_metric(value, sign="+")


def corrected_for(num_comparisons: int) -> str:
    """Return the end of a phrase about a test or an interval; "" if there is one comparison.

    >>> corrected_for(2), corrected_for(1)
    (', corrected for 2 comparisons', '')
    """
    return f", corrected for {num_comparisons} comparisons" if num_comparisons > 1 else ""


def looks_text(num_looks: int) -> str:
    """Return what earlier looks at results cost."""
    cost = f"each comparison counts {num_looks**2} times"
    return f"Seeds came after results, so this is look {num_looks} at them: {cost}."


def p_value(value: float | None) -> str:
    return "-" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"
