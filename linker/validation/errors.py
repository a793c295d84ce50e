"""Failures of the validator, as its callers see them."""

from __future__ import annotations

from typing import Literal

from wire.errors import LinkerError

Side = Literal["source", "target", "spark"]


class ValidatorError(LinkerError):
    """The validator failed. `hopeless`: it will fail again until somebody changes something on this machine."""

    def __init__(
        self, reason: str, *, side: Side | None = None, address: str | None = None, hopeless: bool = False
    ) -> None:
        where = " ".join(part for part in (None if side is None else f"the {side}", address) if part)
        super().__init__(f"{where}: {reason}" if where and where not in reason else reason)
        self.hopeless = hopeless


class ValidatorCancelled(ValidatorError):
    """The run was asked to end and has."""
