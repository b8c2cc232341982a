"""The words of other frameworks: what to write here instead, from the tables in foreign_words.yaml."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from hydrant.config.groups import TrainConfig, group_options, options_with
from hydrant.errors import nearest, quoted
from hydrant.files.read_file import load_config


@cache
def read_tables() -> Mapping[str, Any]:
    """Return the tables of foreign_words.yaml, which describes them; in `keys`, each key is alone."""
    tables = load_config(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    keys = {key: answers for keys, answers in tables["keys"].items() for key in keys.split(", ")}
    return {**tables, "keys": keys}


def own_words(key: str, value: str, options: Sequence[str] | None = None, missing: str = "") -> str | None:
    """Return what to do instead of writing `key=value` of another framework; None if the word is unknown.

    The core asks for it by an entry point of the group `hydrant.words`; its own `own_words` describes the arguments.

    >>> own_words("trainer.max_epochs", "10"), own_words("seed", "1")
    ('write duration=10ep', None)
    >>> own_words("logger", "csv")
    'write tracker=local (metrics.jsonl is always written)'
    >>> own_words("accelerator", "gpu")
    'leave it out (a GPU is used where there is one, otherwise the CPU)'
    >>> own_words("model.net.width", "3", missing="model.net")
    'write model.width=3'
    """
    if options is not None:
        return _own_option(key, value, options)
    tables = read_tables()
    prefix = next((prefix for prefix in tables["prefixes"] if key.startswith(prefix)), "")
    words = tables["keys"].get(key) or tables["keys"].get(key.removeprefix(prefix))
    if words is not None:
        return _answers(words, value)
    root, dot, _ = key.partition(".")
    if dot and root in ("trainer", "callbacks"):
        return _answers(tables["keys"][root], "")
    if missing == key:
        return _with_its_group(key, value)
    node, _, name = key.rpartition(".")
    moved = tables["moved"].get(node) if missing else None
    return moved and f"write {moved}.{name}={quoted(value)}"


def _answers(words: str | Mapping[str, str], value: str) -> str:
    """Return the answer for a value, or those for the names in a list of callbacks."""
    if isinstance(words, str):
        return _answer({"": words}, value)
    is_list = words is read_tables()["keys"]["callbacks"] and re.fullmatch(r"\[[\w, ]+\]", value)
    names = re.findall(r"\w+", value) if is_list else [value]
    return "; ".join(dict.fromkeys(_answer(words, name) for name in names))


def _answer(words: Mapping[str, str], value: str) -> str:
    matches = ((re.fullmatch(form, value, re.IGNORECASE), text) for form, text in words.items() if form)
    match, template = next(((match, text) for match, text in matches if match), (None, words[""]))
    values = [value] if re.match(r"[\[{'\"$]|\w+\(", value) else value.split(",")  # of a sweep: 10ep,20ep
    if match and match.lastindex:
        template = template.replace("{1}", quoted(match[1]))
    text = re.sub(r"\{value\}(\w*)", lambda end: ",".join(quoted(v + end[1]) for v in values), template)
    return f"write {text}" if is_override(template) else text


def is_override(text: str) -> bool:
    """Whether a text of the tables begins with an override. Otherwise it is a sentence.

    >>> is_override("duration={value}ep"), is_override("leave it out")
    (True, False)
    """
    return text.startswith("--") or "=" in text.partition(" ")[0]


def _own_option(group: str, option: str, options: Sequence[str]) -> str | None:
    """Return what to do instead of choosing an option that a group does not have; None if the word is unknown.

    `torch.optim.AdamW` is the option `adamw`. A model of timm or torchvision is looked up there only if no option is
    similar to its name, because the import of both takes seconds.
    """
    name = option.rpartition(".")[2]
    if known := _answer({"": "", **read_tables()["options"].get(group, {})}, name):
        return known
    same = [listed for listed in options if listed.replace("_", "") == name.replace("_", "").lower()]
    if same:
        return f"write {group}={same[0]}"
    if group != "model" or nearest(option, options):
        return None
    import timm
    from torchvision.models import list_models

    if timm.is_model(option):
        return f"write model=timm model.name={option}"
    node = f"{{_target_: torchvision.models.{option}, num_classes: ${{data.num_classes}}}}"
    return f"write ~model '+model={node}'" if option in list_models() else None


def _with_its_group(key: str, value: str) -> str | None:
    """Return what to write for a key of a part without its group; None if no part has the key.

    >>> _with_its_group("class_weights", "balanced")
    'write task.class_weights=balanced (task=classification has it)'
    """
    if "." in key:  # it has a group
        return None
    groups = [group for group in group_options() if group in get_type_hints(TrainConfig)]
    having = {group: options for group in groups if (options := options_with(group, key))}
    overrides = " or ".join(f"{group}.{key}={quoted(value)}" for group in having)
    if len(having) != 1:
        return f"write {overrides}" if having else None
    [(group, options)] = having.items()
    return f"write {overrides} ({group}={' or '.join(options)} {'has' if len(options) == 1 else 'have'} it)"
