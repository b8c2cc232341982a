"""The fork server's last import: exclude all imported objects from garbage collection, and enable the collector.

Written against CPython 3.11. A collection in a forked process would write to the header of every object, and so copy
every memory page that the process shares with the server.
"""

import gc

from hydrant.sweeps.fork_server import is_fork_server

if is_fork_server():
    gc.freeze()
    gc.enable()
