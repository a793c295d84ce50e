"""What an operator is told to type at a cluster when nobody else can do it. Imports nothing: the command line has to start
quickly."""

from __future__ import annotations

from collections.abc import Iterable


def undo_source_fence(topics: Iterable[str]) -> str:
    """What lets the source accept writes to these topics again."""
    named = " ".join(f"--topic {topic}" for topic in topics)
    return f"kafka-acls.sh --remove --deny-principal 'User:*' --operation Write {named}"
