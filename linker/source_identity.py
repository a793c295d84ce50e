"""The identity in a source that is joined: where it is kept, and how the sidecars of a fleet know each other there."""

from __future__ import annotations

import hashlib
import urllib.parse
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Final

from linker.membership import Identity
from wire.metadata.image import ClusterImage

_MARK: Final = 8  # bytes


def identity_path(state_dir: Path, cluster_id: str, broker_id: int) -> Path:
    """The file of an identity: of one broker id in one cluster, whatever the link is called."""
    return state_dir / f"identity-{urllib.parse.quote(cluster_id, safe='')}-{broker_id}.json"


def mark_of(target_cluster_id: str, link: str) -> bytes:
    """The log dir ids of a fleet's sidecars begin alike in the source of a link, so that its metadata log tells each of them
    who the others are, and which of them are there."""
    return hashlib.sha256(f"{target_cluster_id}/{link}".encode()).digest()[:_MARK]


def marked(image: ClusterImage, mark: bytes) -> frozenset[int]:
    """The brokers of a source that are link brokers of one link."""
    return frozenset(
        one.id for one in image.brokers.values() if any(found.startswith(mark) for found in one.log_dirs)
    )


class MarkedBrokers:
    """Those of an image, looked up anew when it has changed: they are asked for on the way of fetches."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self.image = ClusterImage()
        self._offset = -2
        self._found = frozenset[int]()

    def __call__(self) -> frozenset[int]:
        if self._offset != self.image.offset:
            self._offset, self._found = self.image.offset, marked(self.image, self._mark)
        return self._found


def marked_identity(kept: Identity | None, broker_id: int, mark: bytes) -> Identity:
    identity = kept or Identity.create(broker_id)
    if identity.log_dir_id.startswith(mark):
        return identity
    return replace(identity, log_dir_id=mark + uuid.uuid4().bytes[_MARK:])
