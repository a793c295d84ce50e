"""Child processes that end with us: the command and the environment that `die_with_parent.py` needs, and where a child
finds this very package.

Starting, stopping and watching a child is its owner's business.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import linker
from linker.process.die_with_parent import PARENT_VARIABLE


def die_with_us(command: Sequence[str]) -> list[str]:
    """The command, wrapped so that the kernel kills it when this process dies."""
    import linker.process.die_with_parent as wrapper

    return [sys.executable, "-I", "-S", str(Path(wrapper.__file__)), *command]


def parent_environment() -> dict[str, str]:
    """The environment that `die_with_us` needs to be sure of its parent."""
    return {**os.environ, PARENT_VARIABLE: str(os.getpid())}


def python_path() -> dict[str, str]:
    """A child has another working directory: it has to find this very package, installed or not."""
    ours = str(Path(linker.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([ours, inherited] if inherited else [ours])}
