"""Tables of pandas, which is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydrant.imports.distribution import require_extra

if TYPE_CHECKING:
    import pandas as pd


def data_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a DataFrame.

    Raises:
        ConfigError: pandas is not installed.
    """
    require_extra("pandas", ["pandas"], "pandas", "a table of results")
    import pandas as pd

    return pd.DataFrame([dict(row) for row in rows])
