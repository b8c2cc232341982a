"""`hydrant eject`: a run as one plain file.

The file is cut from three kinds of source. `program/` is a training program whose branches are those of the options
(`fold.py` decides them). Models, optimizers, schedules and the like are copied from where Hydrant has them
(`bundle.py`), with their branches decided in the same way. And `cutting/` writes the constants and the calls of the
parts. `assemble.py` puts together what is used. docs/architecture.md has the whole way.
"""

from hydrant.commands.eject.command import main as main
