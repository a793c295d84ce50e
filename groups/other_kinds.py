"""Topics that streams groups (KIP-1071) and share groups (KIP-932) read.

These groups are not held. They are read so that the operator is warned before one of their topics is promoted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from controller.state import GroupProtocol
from groups.group_reader import PURPOSE, GroupReader
from groups.views import ListedGroup
from wire.errors import UnsupportedApi, error_name


async def topics_of(
    source: GroupReader, groups: Mapping[str, ListedGroup], *, timeout: float
) -> tuple[dict[str, frozenset[str]], dict[str, str]]:
    """Topics by group, subscribed or with an offset; and errors by group."""
    streams = [name for name, one in groups.items() if one.protocol is GroupProtocol.STREAMS]
    share = [name for name, one in groups.items() if one.protocol is GroupProtocol.SHARE]
    found: dict[str, set[str]] = {name: set() for name in (*streams, *share)}
    failed: dict[str, str] = {}
    committed = await source.offsets(streams, timeout=timeout)
    failed.update(committed.failed)
    for name, offsets in committed.found.items():
        found[name] |= {tp.topic for tp in offsets}
    for api, names in (("streams_group_describe", streams), ("share_group_describe", share)):

        async def ask(node: int, some: Sequence[str], api: str = api) -> None:
            fields = {"group_ids": list(some), "include_authorized_operations": False}
            try:
                answer = await source.cluster.call(
                    api, fields, node_id=node, timeout=timeout, purpose=PURPOSE
                )
            except UnsupportedApi as error:
                failed.update(dict.fromkeys(some, str(error)))
                return
            for one in answer.groups:
                if int(one.error_code):
                    failed[one.group_id] = error_name(int(one.error_code))
                else:
                    found[one.group_id] |= set(_subscribed(one))

        if names:
            await source.by_node(names, failed, timeout, ask)
    if share:
        await _share_offsets(source, share, found, failed, timeout)
    known = {name: frozenset(topics) for name, topics in found.items() if topics or name not in failed}
    return known, {name: why for name, why in failed.items() if name not in known}


async def _share_offsets(
    source: GroupReader,
    names: Collection[str],
    found: dict[str, set[str]],
    failed: dict[str, str],
    timeout: float,
) -> None:
    """Topics in which a share group without members has a start offset."""

    async def ask(node: int, some: Sequence[str]) -> None:
        fields = {"groups": [{"group_id": name, "topics": None} for name in some]}
        try:
            answer = await source.cluster.call(
                "describe_share_group_offsets", fields, node_id=node, timeout=timeout, purpose=PURPOSE
            )
        except UnsupportedApi:
            return  # a broker from before it: members say what they read
        for one in answer.groups:
            found[one.group_id] |= {topic.topic_name for topic in one.topics}

    await source.by_node(names, failed, timeout, ask)


def _subscribed(one: Any) -> Iterator[str]:
    """Of a described group: a streams group's topology, a share group's members."""
    topology = getattr(one, "topology", None)
    for subtopology in (topology.subtopologies or ()) if topology is not None else ():
        yield from subtopology.source_topics
        yield from (topic.name for topic in subtopology.repartition_source_topics)
    for member in one.members:
        yield from getattr(member, "subscribed_topic_names", ())
