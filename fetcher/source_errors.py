"""The fate of a cursor whose source node answers with an error, with records that cannot be read, or with another log."""

from __future__ import annotations

import time
from collections.abc import Callable

from fetcher.error_table import ErrorAction, classify
from fetcher.join import refused_in_range
from fetcher.partition_copy import PartitionCursor
from fetcher.resolve import Resolver
from fetcher.source_fetcher import SourceFetcher
from wire.errors import MalformedFrame

_MALFORMED_LIMIT = 5


class SourceErrors:
    """Of one link."""

    def __init__(
        self,
        resolver: Resolver,
        *,
        displace: Callable[[PartitionCursor], None],
        suspend: Callable[[PartitionCursor], None],
    ) -> None:
        """`displace`: a cursor is to be placed anew. `suspend`: it pauses, then the same node is asked again."""
        self._resolver = resolver
        self._displace = displace
        self._suspend = suspend

    def answered(self, cursor: PartitionCursor, fetcher: SourceFetcher, code: int) -> None:
        mirror = cursor.mirror
        action, reason = classify(code)
        if action is ErrorAction.FAIL:
            mirror.fail(f"{mirror.tp} at offset {cursor.position}: {reason}")
            return
        if action is ErrorAction.RERESOLVE:
            if self.keep_to_the_leader(cursor, fetcher):
                self._displace(cursor)
            else:
                self._doubt(cursor)
            return
        mirror.source_trouble(f"{reason}, node {fetcher.node.id} ({fetcher.node.address})", time.monotonic())
        if action is ErrorAction.REFRESH:
            self.keep_to_the_leader(cursor, fetcher)
            self._displace(cursor)
        else:
            self._suspend(cursor)

    def malformed(self, cursor: PartitionCursor, fetcher: SourceFetcher, error: MalformedFrame) -> None:
        mirror = cursor.mirror
        text = f"{mirror.tp} at offset {cursor.position} from node {fetcher.node.id}: {error}"
        if cursor.failures + 1 >= _MALFORMED_LIMIT:
            mirror.fail(text)
            return
        mirror.source_trouble(text, time.monotonic())
        self._suspend(cursor)

    def diverged(self, cursor: PartitionCursor, fetcher: SourceFetcher, epoch: int, end_offset: int) -> None:
        """The source's log ends, for our epoch, before where we read: it lost data (or the replica lags)."""
        if self.keep_to_the_leader(cursor, fetcher):
            self._displace(cursor)
        else:
            self.leader_diverged(cursor, fetcher, epoch, end_offset)

    def leader_diverged(
        self, cursor: PartitionCursor, fetcher: SourceFetcher, epoch: int, end_offset: int
    ) -> None:
        """The same, and it is the leader who says so."""
        mirror = cursor.mirror
        own_end = mirror.end_of_source_epoch(epoch)
        offset = end_offset if own_end is None else min(end_offset, own_end)
        if end_offset >= cursor.position and epoch < cursor.last_epoch:
            # Shorter epochs reach further, so it does not know the epoch of what was read last.
            self._doubt(cursor)
        elif offset < 0 or offset >= cursor.position:
            text = f"diverging epoch {epoch} ends at {end_offset}"
            self.malformed(cursor, fetcher, MalformedFrame(text, api="fetch", offset=cursor.position))
        elif offset < mirror.log_start_offset:
            mirror.fail(
                f"the source lost everything the mirror has of {mirror.tp}: its log for leader epoch {epoch} "
                f"ends at {end_offset}, the mirror starts at {mirror.log_start_offset}"
            )
        else:
            mirror.truncate(offset)

    def _doubt(self, cursor: PartitionCursor) -> None:
        """Have the cursor's place in the source's log looked up: where the log begins and ends, and which batch is
        before the cursor."""
        cursor.failures += 1
        if cursor.failures >= _MALFORMED_LIMIT:
            cursor.mirror.fail(refused_in_range(cursor))
        else:
            self._resolver.ask_offsets(cursor.mirror, cursor.last_epoch, cursor.position)
            self._displace(cursor)

    def keep_to_the_leader(self, cursor: PartitionCursor, fetcher: SourceFetcher) -> bool:
        """If the node that failed the cursor is not the leader, let it read from the leader alone for a while. Whether
        that is so."""
        if self._resolver.is_leader(cursor.mirror, fetcher.node.id):
            return False
        cursor.leader_only_since = time.monotonic()
        return True
