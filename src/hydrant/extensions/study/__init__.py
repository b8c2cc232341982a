"""A study: which of several settings is best? Tuned equally, then tested with fresh seeds, until the answer is known.

What a study does next is a function of its protocol and of the results on disk. So the same command continues it after
a kill, and ends with the same answer.

| module | what it does |
| --- | --- |
| `protocol.py` | what is fixed before the first run: contenders, ranges, the rule of the test; in words too |
| `ranges.py` | the values of a tuned key, the first and the finer ones; the budget in runs, updates and seconds |
| `sequential.py` | the test of paired differences that may be looked at after every pair |
| `rounds.py` | the jobs, trained within the budget, and their results; the tuning, and the rounds of fresh seeds |
| `verdict.py` | who is beaten, when the study is decided, and the sentence |
| `sweeper.py` | the order of all this: a sweep like any other, which `status` and `compare` read |
| `records.py`, `record.py` | the types of study.json; what writes it and study.md |
"""

from hydrant.commands.registry import Command

COMMAND = Command("study",
                  "tune settings equally, then test them with fresh seeds until the best is known",
                  answers=(f"{__name__}.records:Study", f"{__name__}.records:StudyFile"),
                  groups="(?!hydra/sweeper).*", writes=True)  # fmt: skip
