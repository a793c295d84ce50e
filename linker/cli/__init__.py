"""The command line: `linker`. Everything but `run`, `demo`, `store` and `doctor --config ...` is a client of the admin API.

Commands import what they need when they run: `linker --help` must not load a web framework or the protocol.
Exit codes: 0 done, 1 failed (one line why on stderr), 2 wrong use, 130 the watching of a promote, failover or
demote was ended by Ctrl-C (it goes on).
"""

from __future__ import annotations

from linker.cli.entry import main

__all__ = ["main"]
