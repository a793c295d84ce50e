"""What libraries load with themselves and a sidecar never uses: memory, and a part of the time that a start takes.

Something empty is in its place while the library is loaded, and whoever asks for it afterwards gets the real one. Not
here: what a library does without by itself, if it is not there (``linker/cli/run.py``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

_ZONES: Final = "PYTHONTZPATH"


@contextmanager
def standing_in(*names: str) -> Iterator[None]:
    """Empty modules are in the places of these for whoever is loaded meanwhile. All that is asked of them is an empty class
    of that name, which may be inherited from. One that is loaded already stays.
    """
    made = [name for name in names if name not in sys.modules]
    for name in made:
        module = sys.modules[name] = ModuleType(name)
        module.__dict__["__getattr__"] = _empty_class
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


@contextmanager
def no_time_zones() -> Iterator[None]:
    """`zoneinfo` is loaded without looking for time zones: it asks how this Python was built where they are, half a
    megabyte of answers. Whoever wants one by name afterwards has to say where it is, or install `tzdata`.
    """
    if _ZONES in os.environ or "zoneinfo" in sys.modules:
        yield
        return
    os.environ[_ZONES] = ""
    try:
        yield
    finally:
        del os.environ[_ZONES]


def _empty_class(name: str) -> type:
    if name.startswith("__"):  # a module's own, of which the import system asks for some
        raise AttributeError(name)
    return type(name, (), {})
