"""docs/guides/stacked.md names the keys in which lanes differ, as the code has them."""

import re

from repository import ROOT

from hydrant.sweeps import preflight

GUIDE = (ROOT / "docs" / "guides" / "stacked.md").read_text(encoding="utf-8")


def test_the_guide_lists_the_keys_in_which_lanes_differ() -> None:
    table = GUIDE.partition("| keys | differ in |")[2].partition("\n\n")[0]
    listed = set(re.findall(r"`(\w+)`", "\n".join(r.split("|")[1] for r in table.split("\n") if "`" in r)))
    constants = (preflight._ANY_VALUE, preflight._ANY_GROUPS, preflight._FRACTIONS)
    assert listed == {key.rstrip(".") for keys in constants for key in keys}
