"""Streams groups (KIP-1071) and share groups (KIP-932): members, topics and offsets; configs that decide where they begin.

No gate holds these groups, so the operator is warned before one of their topics is promoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.judge.group_offsets import Committed
from controller.mirror_group import GroupProtocol
from groups import share_offsets
from groups.group_reader import PURPOSE, GroupReader
from groups.views import GroupView, ListedGroup
from wire.errors import LinkerError, error_name
from wire.frames.types import TopicPartition
from wire.shown_id import shown_id

_GROUP_CONFIGS = 32  # ConfigResource.Type.GROUP


@dataclass(slots=True)
class OtherKinds:
    """By group. A group of which a part could not be read is in `failed`, and in the others as far as it is known."""

    views: dict[str, GroupView] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, Committed]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def topics(self, name: str) -> frozenset[str]:
        """Subscribed, or with an offset. A share group without members is known by its offsets only."""
        view = self.views.get(name)
        return (frozenset() if view is None else view.topics) | {
            tp.topic for tp in self.offsets.get(name, ())
        }


async def read_by(source: GroupReader, groups: Mapping[str, ListedGroup], *, timeout: float) -> OtherKinds:
    share = [name for name, one in groups.items() if one.protocol is GroupProtocol.SHARE]
    streams = [name for name, one in groups.items() if one.protocol is GroupProtocol.STREAMS]
    answer = OtherKinds()
    answer.views, answer.failed = await source.describe([*streams, *share], timeout=timeout)
    committed = await source.offsets(streams, timeout=timeout)
    started = await share_offsets.read(source, share, timeout=timeout)
    answer.offsets = {**committed.found, **started.found}
    answer.failed = {**committed.failed, **started.failed, **answer.failed}
    return answer


async def configs_that_differ(
    source: GroupReader, target: GroupReader, name: str, *, timeout: float
) -> list[str]:
    """Configs of the group itself (kafka-configs.sh --entity-type groups) that are not the same at both clusters, with the
    command that makes them so; or that they are not known."""
    try:
        there, here = [await _configs(reader, name, timeout) for reader in (source, target)]
    except LinkerError as error:
        return [f"its configs are not known ({error})"]
    return [
        f"{key} is {there[key]} at the source and {here[key]} on the target (kafka-configs.sh --alter --entity-type groups "
        f"--entity-name {shown_id(name)} --add-config {key}={there[key]})"
        for key in sorted(there.keys() & here.keys())
        if there[key] != here[key]
    ]


async def _configs(reader: GroupReader, name: str, timeout: float) -> dict[str, str]:
    """Effective values of the configs of share and streams groups; none where brokers are too old to have any."""
    resource = {"resource_type": _GROUP_CONFIGS, "resource_name": name, "configuration_keys": None}
    answer = await reader.cluster.call(
        "describe_configs",
        {"resources": [resource], "include_synonyms": False, "include_documentation": False},
        timeout=timeout,
        purpose=PURPOSE,
    )
    (result,) = answer.results
    if code := int(result.error_code):
        raise LinkerError(f"{reader.cluster.name}: {error_name(code)}")
    return {
        one.name: one.value
        for one in result.configs
        if one.value is not None and one.name.startswith(("share.", "streams."))
    }
