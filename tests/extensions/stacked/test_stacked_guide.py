"""docs/guides/stacked.md names what stacks and what does not, as the code has it."""

import ast
import inspect
import re

from repository import ROOT

from hydrant.extensions.stacked import check
from hydrant.sweeps import preflight

GUIDE = (ROOT / "docs" / "guides" / "stacked.md").read_text(encoding="utf-8")


def reasons() -> list[str]:
    """Return the reasons in the table of the check on a plan, in their order."""
    tree = ast.parse(inspect.getsource(check.check_plan))
    [table] = [node for node in ast.walk(tree) if isinstance(node, ast.Dict) and len(node.keys) > 1]
    return [ast.literal_eval(key) for key in table.keys if key]


def test_the_guide_lists_each_reason_for_which_a_job_trains_alone() -> None:
    section = GUIDE.partition("A job trains alone")[2].partition("What `torch.vmap`")[0]
    listed = [item.replace("`", "") for item in re.findall(r"^- (.*)$", section, re.MULTILINE)]
    assert sorted(listed) == sorted(reasons())
    assert len(listed) > 10


def test_the_guide_lists_the_keys_in_which_lanes_differ() -> None:
    table = GUIDE.partition("| keys | differ in |")[2].partition("\n\n")[0]
    listed = set(
        re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.split("\n") if "`" in line))
    )
    constants = (preflight._ANY_VALUE, preflight._ANY_GROUPS, preflight._FRACTIONS)  # pyright: ignore[reportPrivateUsage]
    assert listed == {key.rstrip(".") for keys in constants for key in keys}
