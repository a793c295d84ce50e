"""The target's coordinators as gates call them: describes are shared, and a missing right is named with its group."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from groups.gates import codes
from wire.client.cluster import Cluster
from wire.client.coordinators import GATHER, CoordinatorClient, Gathered, KeyType
from wire.errors import LinkerError, RequestTimedOut
from wire.shown_id import shown_id

__all__ = ["Coordinators", "KeyType"]

_DESCRIBE_MAX_GROUPS = 200  # some ten milliseconds of decoding
_DESCRIBED_BY = {
    "consumer_group_describe": "group_ids",
    "streams_group_describe": "group_ids",
    "describe_groups": "groups",
}


class Coordinators(CoordinatorClient):
    """The coordinators of one target cluster; `close` when the link ends."""

    def __init__(self, cluster: Cluster, **limits: Any) -> None:
        super().__init__(cluster, **limits)
        self._describes: dict[tuple[int, str], Gathered[Any]] = {}

    def refused(self, code: int, key: str) -> LinkerError:
        return codes.error(code, "find_coordinator", key, resource=key)

    async def describe(self, group: str, api: str, *, timeout: float) -> Any:
        """A group's part of the answer of an api that describes groups. Simultaneous calls for one
        coordinator share a request. Raises as `call`."""
        deadline = time.monotonic() + timeout

        async def ask(node: int) -> Any:
            return await self._described(node, group, api, deadline)

        return await self._settled(
            KeyType.GROUP, group, api, ask, lambda one: (int(one.error_code),), deadline
        )

    async def _described(self, node: int, group: str, api: str, deadline: float) -> Any:
        gathered = self._describes.get((node, api))
        if gathered is None or len(gathered.wanted) >= _DESCRIBE_MAX_GROUPS:
            ends = time.monotonic() + GATHER + self._call_timeout
            gathered = self._describes[node, api] = Gathered(ends)
            self._spawn(self._describe_gathered(node, api, gathered))
        answer = gathered.want(group)
        if gathered.deadline <= deadline:
            return await asyncio.shield(
                answer
            )  # every caller is told by then: no timer for each of thousands
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                return await asyncio.shield(answer)
        except TimeoutError:
            raise RequestTimedOut(
                f"cluster {self.cluster.name}: coordinator {node} did not describe {shown_id(group)}",
                sent=True,
                api=api,
            ) from None

    async def _describe_gathered(self, node: int, api: str, gathered: Gathered[Any]) -> None:
        with gathered.told(f"describing groups of cluster {self.cluster.name}"):
            try:
                await asyncio.sleep(GATHER)
            finally:
                if self._describes.get((node, api)) is gathered:
                    del self._describes[node, api]  # from here on others start the next one
            fields = {_DESCRIBED_BY[api]: list(gathered.wanted)}
            answer = await self._try(node, api, fields, None, None, gathered.deadline)
            for one in answer.groups:
                gathered.answer(one.group_id, one)
