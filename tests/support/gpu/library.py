"""The functions of the preloaded library that Python calls."""

import ctypes
import functools


@functools.cache
def library() -> ctypes.CDLL:
    """Return the preloaded library."""
    loaded = ctypes.CDLL(None)
    loaded.gpu_stub_call.restype = ctypes.c_char_p
    loaded.gpu_stub_call.argtypes = [ctypes.c_long]
    loaded.gpu_stub_num_calls.restype = ctypes.c_long
    loaded.gpu_stub_note.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]
    loaded.cudaMemcpyAsync.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    loaded.cudaStreamSynchronize.argtypes = [ctypes.c_void_p]
    loaded.gpu_stub_enqueue.argtypes = [ctypes.c_void_p] * 3
    loaded.gpu_stub_finish.argtypes = [ctypes.c_void_p]
    return loaded
