"""Keeps the identity of the sidecar in each cluster of which it is a broker.

A fleet keeps it in a file rather than in the shared store, because a sidecar has to come back as the same broker even
while no link controller can be reached. Each cluster has a file of its own: an identity belongs to one cluster.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

from controller.state import SidecarIdentity
from fleet.shared_controller import SharedController
from linker.membership import Identity
from linker.process.state_files import StateDirError, read_state, write_state


class IdentityFile:
    """The identity in one cluster, in one file of the state directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Identity | None:
        """None before the sidecar ever registered in that cluster."""
        kept = read_state(self.path)
        if not kept:
            return None
        try:
            return Identity(
                int(kept["broker_id"]),
                base64.b64decode(kept["incarnation_id"], validate=True),
                base64.b64decode(kept["log_dir_id"], validate=True),
                int(kept["broker_epoch"]),
                str(kept["cluster_id"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StateDirError(f"{self.path} is damaged ({error!r}): restore it from a backup") from error

    def store(self, identity: Identity) -> None:
        """Durable when it returns."""
        write_state(
            self.path,
            {
                "broker_id": identity.broker_id,
                "incarnation_id": base64.b64encode(identity.incarnation_id).decode(),
                "log_dir_id": base64.b64encode(identity.log_dir_id).decode(),
                "broker_epoch": identity.broker_epoch,
                "cluster_id": identity.cluster_id,
            },
        )

    async def save(self, identity: Identity) -> None:
        """linker.membership.identity.SaveIdentity"""
        await asyncio.to_thread(self.store, identity)


class TargetIdentity:
    """The identity in the target: in a file, or in the controller's state where the sidecar has no fleet."""

    def __init__(
        self,
        broker_id: int,
        file: IdentityFile | None,
        controller: SharedController,
        session: str,
        sources: tuple[tuple[str, int], ...] = (),
    ) -> None:
        """`sources`: as `SidecarIdentity.sources`."""
        self._sources = sources
        self._broker_id = broker_id
        self._file = file
        self._controller = controller
        self._session = session
        self._identity: Identity | None = None

    def get(self) -> Identity:
        """The one to register with, a new one if there is none. Call when the state is loaded, or in a fleet at any time."""
        if self._identity is None:
            self._identity = self._kept() or Identity.create(self._broker_id)
            if self._file is not None:
                self._file.store(self._identity)
        return self._identity

    def known(self) -> Identity | None:
        """As `get`, without the state: a move from another store leaves the identity there until it is loaded."""
        return self._identity or (None if self._file is None else self._file.load())

    def _kept(self) -> Identity | None:
        if self._file is not None:
            kept = self._file.load()
            if kept is not None and kept.broker_id == self._broker_id:
                return kept
        stored = self._controller.image.identities.get(self._broker_id)
        if stored is None or stored.incarnation_id == bytes(16):
            return None
        return Identity(
            self._broker_id, stored.incarnation_id, stored.log_dir_id, stored.broker_epoch, stored.cluster_id
        )

    async def save(self, identity: Identity) -> None:
        """Durable when it returns."""
        self._identity = identity
        if self._file is not None:
            await self._file.save(identity)
            return
        await self._controller.save_identity(
            SidecarIdentity(
                broker_id=identity.broker_id,
                incarnation_id=identity.incarnation_id,
                log_dir_id=identity.log_dir_id,
                broker_epoch=identity.broker_epoch,
                cluster_id=identity.cluster_id,
                session=self._session,
                sources=self._sources,
            )
        )
