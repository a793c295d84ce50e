"""The fleet's durations, in seconds, with the reason for each default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """`lease` bounds how long a promote waits for a sidecar that is gone, and how long the others go on without a
    link controller; `failure_timeout` how soon leadership leaves a silent sidecar (which is safe at any time)."""

    lease: float = 10.0
    renew_interval: float = 0.5
    failure_timeout: float = 2.0
    reset_grace: float = 0.5  # a connection that broke may come back: not dead before that
    report_interval: float = 1.0
    hello_timeout: float = 5.0
    connect_timeout: float = 3.0
    retry_first: float = 0.1
    retry_max: float = 1.0
    store_timeout: float = 5.0  # one proof that the epoch is still ours
    ask_timeout: float = 10.0
