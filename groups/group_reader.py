"""Group lists, members and committed offsets of one cluster, read from the coordinators.

One connection per coordinator, requests in batches. Everything here may be repeated. An error of one group in an
answer concerns that group only; a coordinator without an answer is an error of all of its groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from controller.judge.group_offsets import Committed
from groups.gates.base import OffsetAndMetadata
from groups.gates.pieces import Piece, pieces, smaller
from groups.gates.requests import by_topic, failed_partitions
from groups.views import (
    GroupView,
    ListedGroup,
    Listing,
    Offsets,
    classic_view,
    consumer_view,
    protocol_of,
    share_view,
    streams_view,
)
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.client.coordinators import CoordinatorFinder, KeyType
from wire.client.retry import NodeKind, passing
from wire.errors import BrokerError, LinkerError, RequestTimedOut, UnsupportedApi, error_name
from wire.frames.error_codes import (
    GROUP_ID_NOT_FOUND,
    INVALID_COMMIT_OFFSET_SIZE,
    OFFSET_METADATA_TOO_LARGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSTABLE_OFFSET_COMMIT,
    UNSUPPORTED_VERSION,
)
from wire.frames.types import TopicPartition
from wire.shown_id import shown_id
from wire.together import together

PURPOSE = "groups"
_BATCH = 200  # groups in one request: some ten milliseconds of decoding
_FIRST_BATCHED_OFFSETS = 8  # OffsetFetch: several groups
#: KIP-848, KIP-1071, KIP-932: each api knows the groups of its own kind only.
_NEWER_KINDS: tuple[tuple[str, Callable[[Any], GroupView]], ...] = (
    ("consumer_group_describe", consumer_view),
    ("streams_group_describe", streams_view),
    ("share_group_describe", share_view),
)
_NOT_OF_THIS_KIND = frozenset({GROUP_ID_NOT_FOUND, UNSUPPORTED_VERSION})  # 35: the kind is switched off there


class GroupReader:
    """A reader over one cluster. `trouble`: why it must not be asked at present, even if a broker answers at its
    address."""

    def __init__(self, cluster: Cluster, trouble: Callable[[], str | None] = lambda: None) -> None:
        self.cluster = cluster
        self._trouble = trouble
        self._finder = CoordinatorFinder(cluster, purpose=PURPOSE)

    def check(self) -> None:
        """LinkerError if it must not be asked."""
        if (trouble := self._trouble()) is not None:
            raise LinkerError(trouble)

    async def list_groups(self, *, timeout: float) -> Listing:
        """Each broker lists the groups that it coordinates. LinkerError if the cluster cannot be reached at all."""
        self.check()
        await self.cluster.refresh((), timeout=timeout)
        nodes = list(self.cluster.nodes)
        listing = Listing()
        answers = await asyncio.gather(
            *(self._listed(node, timeout) for node in nodes), return_exceptions=True
        )
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, LinkerError):
                listing.silent[node] = str(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for one in answer:
                    listing.groups[one.group] = one
        if nodes and len(listing.silent) == len(nodes):
            raise LinkerError(
                f"no broker of {self.cluster.name} lists its groups: {listing.silent[nodes[0]]}"
            )
        return listing

    async def _listed(self, node: int, timeout: float) -> list[ListedGroup]:
        answer = await self.cluster.call("list_groups", {}, node_id=node, timeout=timeout, purpose=PURPOSE)
        _raise(answer.error_code, "list_groups")
        return [
            ListedGroup(
                one.group_id,
                one.protocol_type,
                getattr(one, "group_state", None),
                protocol_of(getattr(one, "group_type", None)),
            )
            for one in answer.groups
        ]

    # --- describing --------------------------------------------------------------------------------------------------

    async def describe(
        self, names: Collection[str], *, timeout: float
    ) -> tuple[dict[str, GroupView], dict[str, str]]:
        """The members of the groups, and errors by group. A group that does not exist is `Dead`, without members."""
        views: dict[str, GroupView] = {}
        failed: dict[str, str] = {}
        await self.by_node(
            names, failed, timeout, lambda node, some: self._described(node, some, views, failed, timeout)
        )
        return views, failed

    async def _described(
        self,
        node: int,
        names: Sequence[str],
        views: dict[str, GroupView],
        failed: dict[str, str],
        timeout: float,
    ) -> None:
        # A group of a newer kind is GROUP_ID_NOT_FOUND (69) to DescribeGroups, or Dead to one that is too old to say so.
        answer = await self.cluster.call(
            "describe_groups", {"groups": list(names)}, node_id=node, timeout=timeout, purpose=PURPOSE
        )
        missing = []
        for one in answer.groups:
            code = int(one.error_code)
            if code == GROUP_ID_NOT_FOUND or (not code and one.group_state == "Dead"):
                missing.append(one.group_id)
            elif code:
                self.note_failure(one.group_id, code, failed)
            else:
                views[one.group_id] = classic_view(one)
        for api, view in _NEWER_KINDS:
            if not missing:
                return
            try:
                answer = await self.cluster.call(
                    api, {"group_ids": missing}, node_id=node, timeout=timeout, purpose=PURPOSE
                )
            except UnsupportedApi:
                continue
            missing = []
            for one in answer.groups:
                code = int(one.error_code)
                if code in _NOT_OF_THIS_KIND:
                    missing.append(one.group_id)
                elif code:
                    self.note_failure(one.group_id, code, failed)
                else:
                    views[one.group_id] = view(one)
        views.update((name, GroupView(name)) for name in missing)

    # --- offsets -----------------------------------------------------------------------------------------------------

    async def offsets(self, names: Collection[str], *, timeout: float, stable: bool = False) -> Offsets:
        """All committed offsets of the groups. `stable`: groups with offsets in an open transaction are reported apart
        (KIP-447); otherwise their offsets from before it are returned."""
        answer = Offsets()
        await self.by_node(
            names,
            answer.failed,
            timeout,
            lambda node, some: self._fetched(node, some, answer, timeout, stable),
        )
        return answer

    async def _fetched(
        self, node: int, names: Sequence[str], into: Offsets, timeout: float, stable: bool
    ) -> None:
        connection = await self.cluster.connection(node, purpose=PURPOSE)
        offered = connection.api_range("offset_fetch")
        if offered is None or offered[1] < _FIRST_BATCHED_OFFSETS:
            for name in names:
                answer = await self.cluster.call(
                    "offset_fetch",
                    {"group_id": name, "topics": None, "require_stable": stable},
                    node_id=node,
                    timeout=timeout,
                    purpose=PURPOSE,
                )
                self._take_offsets(name, answer, into)
            return
        # v10 names topics by id: names are what is the same on both clusters.
        answer = await self.cluster.call(
            "offset_fetch",
            {"groups": [{"group_id": name, "topics": None} for name in names], "require_stable": stable},
            node_id=node,
            timeout=timeout,
            purpose=PURPOSE,
            version=min(offered[1], 9),
        )
        for group in answer.groups:
            self._take_offsets(group.group_id, group, into)

    def _take_offsets(self, name: str, answer: Any, into: Offsets) -> None:
        code = int(getattr(answer, "error_code", 0))
        if code == GROUP_ID_NOT_FOUND:
            into.found[name] = {}
            return
        if code:
            self.note_failure(name, code, into.failed)
            return
        found: dict[TopicPartition, Committed] = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                code = int(partition.error_code)
                if code == UNSTABLE_OFFSET_COMMIT:
                    into.unstable[name] = (
                        f"{topic.name}-{partition.partition_index} is in an open transaction"
                    )
                elif code:
                    into.failed[name] = f"{topic.name}-{partition.partition_index}: {error_name(code)}"
                elif partition.committed_offset >= 0:
                    found[TopicPartition(topic.name, partition.partition_index)] = Committed(
                        partition.committed_offset, partition.metadata or ""
                    )
        if name not in into.unstable and name not in into.failed:
            into.found[name] = found

    async def commit_empty(
        self, name: str, offsets: Mapping[TopicPartition, Committed], *, timeout: float
    ) -> set[TopicPartition]:
        """Commit for a group without members. LinkerError if it has members, or if a partition was refused after all
        others were committed. Texts that the cluster refuses are dropped. Returns the partitions that the cluster does
        not have."""
        failed: dict[str, str] = {}
        nodes = await self._locate([name], failed, timeout)
        if failed:
            raise LinkerError(f"group {shown_id(name)}: {failed[name]}")
        connection = await self.cluster.connection(nodes[name], purpose=PURPOSE)
        left = list(pieces(name, {tp: OffsetAndMetadata(*commit) for tp, commit in offsets.items()}))
        absent: set[TopicPartition] = set()
        refused: dict[TopicPartition, int] = {}
        while left:
            piece = left.pop(0)
            failed_now = await _commit_as_nobody(connection, name, piece, timeout)
            if halves := smaller(name, piece, failed_now.values()):
                left[:0] = halves
                continue
            bare: Piece = {}
            for tp, code in failed_now.items():
                if code == UNKNOWN_TOPIC_OR_PARTITION:
                    absent.add(tp)
                elif code in (OFFSET_METADATA_TOO_LARGE, INVALID_COMMIT_OFFSET_SIZE) and piece[tp].metadata:
                    bare[tp] = OffsetAndMetadata(piece[tp].offset)
                else:
                    refused[tp] = code
            left[:0] = [bare] if bare else []
        for tp, code in sorted(refused.items()):
            self.note_failure(name, code, {})
            raise LinkerError(
                f"group {shown_id(name)}: {tp.topic}-{tp.partition} was not committed: {error_name(code)}"
            )
        return absent

    async def delete(self, name: str, *, timeout: float) -> None:
        """A group without members, with its offsets. LinkerError if it has any; one that is not there is no error."""
        failed: dict[str, str] = {}

        async def ask(node: int, _: Sequence[str]) -> None:
            answer = await self.cluster.call(
                "delete_groups", {"groups_names": [name]}, node_id=node, timeout=timeout, purpose=PURPOSE
            )
            for one in answer.results:
                if (code := int(one.error_code)) not in (0, GROUP_ID_NOT_FOUND):
                    self.note_failure(name, code, failed)

        await self.by_node([name], failed, timeout, ask)
        if failed:
            raise LinkerError(
                f"group {shown_id(name)} was not deleted on {self.cluster.name}: {failed[name]}"
            )

    # --- coordinators ------------------------------------------------------------------------------------------------

    def note_failure(self, name: str, code: int, failed: dict[str, str]) -> None:
        failed[name] = error_name(code)
        if passing(NodeKind.COORDINATOR, code):
            self._finder.forget(KeyType.GROUP, name)

    async def by_node(self, names: Collection[str], failed: dict[str, str], timeout: float, ask: Any) -> None:
        """Ask each coordinator for its groups, batch after batch on its one connection."""
        nodes = await self._locate(names, failed, timeout)
        by_node: dict[int, list[str]] = {}
        for name, node in nodes.items():
            by_node.setdefault(node, []).append(name)

        async def one(node: int, mine: list[str]) -> None:
            for some in _batches(mine, _BATCH):
                try:
                    await ask(node, some)
                except LinkerError as error:
                    for name in some:
                        failed[name] = str(error)
                        self._finder.forget(KeyType.GROUP, name)
                    if isinstance(error, RequestTimedOut):
                        timed_out = mine[mine.index(some[-1]) + 1 :]
                        failed.update(dict.fromkeys(timed_out, str(error)))
                        return

        await together(one(node, mine) for node, mine in by_node.items())

    async def _locate(self, names: Collection[str], failed: dict[str, str], timeout: float) -> dict[str, int]:
        if (trouble := self._trouble()) is not None:
            failed.update(dict.fromkeys(names, trouble))
            return {}
        unknown = [name for name in names if self._finder.known(KeyType.GROUP, name) is None]
        for some in _batches(unknown, _BATCH):
            try:
                await self._find(some, failed, timeout)
            except LinkerError as error:
                failed.update(dict.fromkeys(some, str(error)))
        return {name: node for name in names if (node := self._finder.known(KeyType.GROUP, name)) is not None}

    async def _find(self, names: Sequence[str], failed: dict[str, str], timeout: float) -> None:
        for name, place in (await self._finder.locate(KeyType.GROUP, names, timeout)).items():
            if place.code:
                failed[name] = f"no coordinator: {error_name(place.code)}"


async def _commit_as_nobody(
    connection: Connection, group: str, piece: Piece, timeout: float
) -> dict[TopicPartition, int]:
    """The error codes other than NONE, by partition."""
    offered = connection.api_range("offset_commit") or (0, 9)
    answer = await connection.call(
        "offset_commit",
        {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": by_topic(piece),
        },
        timeout=timeout,
        max_version=min(offered[1], 9),
    )
    return failed_partitions(answer)


def _raise(code: object, api: str) -> None:
    if int(code):  # type: ignore[call-overload]
        raise BrokerError(int(code), api=api)  # type: ignore[call-overload]


def _batches(names: Iterable[str], size: int) -> Iterable[list[str]]:
    rest = iter(names)
    while some := list(islice(rest, size)):
        yield some
