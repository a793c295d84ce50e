"""Reads a snapshot of the metadata log from the active controller (FetchSnapshot, KIP-630)."""

from __future__ import annotations

from linker.membership.controller_channel import ControllerChannel
from linker.membership.errors import MetadataLogFailed
from linker.membership.quorum import Quorum, QuorumVerdict
from linker.membership.raft_requests import fetch_snapshot_request
from wire.errors import LinkerError, MalformedFrame
from wire.frames.error_codes import POSITION_OUT_OF_RANGE, SNAPSHOT_NOT_FOUND

_MAX_SNAPSHOT_BYTES = 8 << 20  # of one answer
_MAX_SNAPSHOT = 1 << 30
_REQUEST_TIMEOUT = 3.0


class SnapshotGone(LinkerError):
    """The snapshot was replaced while it was read."""


class SnapshotReader:
    """Reads the snapshots that the leader of the quorum names."""

    def __init__(self, channel: ControllerChannel, quorum: Quorum) -> None:
        self._channel = channel
        self._quorum = quorum

    async def fetch(self, end_offset: int, epoch: int) -> bytes:
        """All bytes of one snapshot (KIP-630); positions may lie inside a batch."""
        data = bytearray()
        size = -1
        while size < 0 or len(data) < size:
            active, connection = await self._channel.connection("metadata", timeout=_REQUEST_TIMEOUT)
            try:
                response = await connection.call(
                    "fetch_snapshot",
                    fetch_snapshot_request(
                        cluster_id=self._quorum.cluster_id,
                        quorum_epoch=self._quorum.epoch,
                        snapshot=(end_offset, epoch),
                        position=len(data),
                        max_bytes=_MAX_SNAPSHOT_BYTES,
                    ),
                    timeout=_REQUEST_TIMEOUT,
                    max_version=1,
                )
            except LinkerError:
                self._channel.moved(active)
                raise
            self._quorum.check_top_level(int(response.error_code), "fetch_snapshot", active)
            if not response.topics or not response.topics[0].partitions:
                raise MalformedFrame("no metadata partition", api="fetch_snapshot", peer=active.address)
            partition = response.topics[0].partitions[0]
            if int(partition.error_code) in (SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE):
                raise SnapshotGone(f"snapshot {end_offset}-{epoch} is gone, asking anew")
            if self._quorum.check_partition(partition, "fetch_snapshot", active) is not QuorumVerdict.TAKE:
                raise SnapshotGone(f"the leader changed while snapshot {end_offset}-{epoch} was read")
            size = partition.size
            if size > _MAX_SNAPSHOT:
                raise MetadataLogFailed(
                    f"a metadata snapshot of {size} bytes is above the limit {_MAX_SNAPSHOT}"
                )
            chunk = partition.unaligned_records
            if partition.position != len(data) or not chunk:
                raise MalformedFrame(
                    f"snapshot bytes at {partition.position}, asked for {len(data)}",
                    api="fetch_snapshot",
                    offset=end_offset,
                    peer=active.address,
                )
            data += chunk
        return bytes(data)
