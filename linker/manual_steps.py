"""Commands that an operator has to run at a cluster where the sidecar cannot. Imports nothing, so that the command line
starts quickly."""

from __future__ import annotations

from collections.abc import Iterable


def undo_source_fence(topics: Iterable[str]) -> str:
    """The command that lets the source accept writes to these topics again."""
    named = " ".join(f"--topic {topic}" for topic in topics)
    return f"kafka-acls.sh --remove --deny-principal 'User:*' --operation Write {named}"
