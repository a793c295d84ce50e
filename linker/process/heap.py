"""Memory that the C library keeps after a burst, given back to the system.

Python frees what nobody needs, but glibc keeps freed memory for later, as far as something in use lies above it: after
hundreds of slow readers it was gigabytes, for as long as the process ran.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

#: Less than that is kept: it is needed again soon, and asking for it anew takes time.
WORTH: Final = 64 << 20


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _glibc() -> Any:
    """None where the C library is another one, or older than 2.33."""
    try:
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = _Mallinfo2
        library.mallinfo2.argtypes = []
        library.malloc_trim.restype = ctypes.c_int
        library.malloc_trim.argtypes = [ctypes.c_size_t]
    except (OSError, AttributeError):
        return None
    return library


_library: Final = _glibc()


def free_bytes() -> int:
    """Bytes that the C library has and nobody uses."""
    return 0 if _library is None else int(_library.mallinfo2().fordblks)


def give_back(worth: int = WORTH) -> bool:
    """Give free memory back if it is that much. Takes milliseconds, and lets other threads run meanwhile."""
    if _library is None or free_bytes() < worth:
        return False
    return bool(_library.malloc_trim(0))
