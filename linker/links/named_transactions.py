"""Transactions at the source that have a partition of given topics, whether they have written there yet or not."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from wire.client.cluster import Cluster
from wire.errors import LinkerError, error_name
from wire.together import together

#: The states of which markers are still to be written (org.apache.kafka.clients.admin.TransactionState).
_OPEN = ("Ongoing", "PrepareAbort", "PrepareCommit")
_AT_A_TIME = 500


@dataclass(frozen=True, slots=True)
class Named:
    """The transactional ids by topic. `untold`: per broker that did not tell, why."""

    ids: dict[str, list[str]] = field(default_factory=dict)
    untold: list[str] = field(default_factory=list)


async def transactions_with(source: Cluster, topics: Collection[str], *, timeout: float) -> Named:
    """Of every coordinator, each of which knows its own (KIP-664, Kafka 3.0). A broker leaves out without a word all that
    the principal may not describe."""
    found = Named()
    for node, told in zip(
        nodes := sorted(source.nodes),
        await together(_of(source, node, frozenset(topics), timeout) for node in nodes),
        strict=True,
    ):
        if isinstance(told, str):
            found.untold.append(f"broker {node} does not tell its transactions: {told}")
            continue
        for topic, transactional_id in told:
            found.ids.setdefault(topic, []).append(transactional_id)
    return found


async def _of(
    source: Cluster, node: int, topics: frozenset[str], timeout: float
) -> list[tuple[str, str]] | str:
    """(topic, transactional id) of one coordinator, or why it does not tell."""
    try:
        async with asyncio.timeout(timeout):
            listed = await source.call(
                "list_transactions",
                {"state_filters": list(_OPEN), "producer_id_filters": []},
                node_id=node,
                timeout=timeout,
                version=0,
            )
            if code := int(listed.error_code):
                return error_name(code)
            ids = [str(one.transactional_id) for one in listed.transaction_states]
            return [
                pair
                for begin in range(0, len(ids), _AT_A_TIME)
                for pair in await _described(source, node, ids[begin : begin + _AT_A_TIME], topics, timeout)
            ]
    except (LinkerError, TimeoutError) as error:
        return str(error) or f"no answer within {timeout:g} s"


async def _described(
    source: Cluster, node: int, ids: Sequence[str], topics: frozenset[str], timeout: float
) -> Iterable[tuple[str, str]]:
    answer = await source.call(
        "describe_transactions", {"transactional_ids": list(ids)}, node_id=node, timeout=timeout
    )
    # One that has ended meanwhile has an error or no topics.
    return [
        (str(part.topic), str(one.transactional_id))
        for one in answer.transaction_states
        for part in one.topics
        if str(part.topic) in topics
    ]
