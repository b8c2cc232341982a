"""After the imports: the server's processes do not look through what came in, which would write to every page of it."""

import gc

from hydrant.server import is_here

if is_here():
    gc.freeze()
    gc.enable()
