"""The source's producers, for status."""

from __future__ import annotations

from admin.models import SourceProducer
from linker.links.source_writers import AtSource, age
from wire.shown_id import listed

_MOST = 5


def source_producers(seen: AtSource) -> list[SourceProducer]:
    """Each producer once per partition."""
    found: list[SourceProducer] = []
    for tp in sorted(seen.direct.keys() | seen.open.keys()):
        direct = {(one.producer_id, one.producer_epoch) for one in seen.direct.get(tp, ())}
        every = {
            (one.producer_id, one.producer_epoch): one
            for one in (*seen.direct.get(tp, ()), *seen.open.get(tp, ()))
        }
        found += [
            SourceProducer(
                topic=tp.topic,
                partition=tp.partition,
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                transactional_id=seen.transactional_ids.get(one.producer_id),
                last_write_ms=None if one.last_timestamp < 0 else max(0, seen.at_ms - one.last_timestamp),
                open_since_offset=one.txn_start_offset if one.in_transaction else None,
                direct=key in direct,
            )
            for key, one in every.items()
        ]
    return found


def _counted(producers: int) -> str:
    return f"{producers} producer{'s' if producers != 1 else ''} wrote"


def direct_warnings(seen: AtSource) -> list[str]:
    """A line per topic that somebody writes to directly, and one if names are missing."""
    topics: dict[str, dict[int, int]] = {}
    for tp, producers in seen.direct.items():
        newest = topics.setdefault(tp.topic, {})
        for one in producers:
            newest[one.producer_id] = max(newest.get(one.producer_id, -1), one.last_timestamp)
    lines = [
        f"topic {topic}: {_counted(len(newest))} to the source itself in the last quarter of an hour, the last one "
        f"{age(seen.at_ms - max(newest.values()))} ago ({', '.join(map(str, sorted(newest)[:_MOST]))}"
        f"{', ...' if len(newest) > _MOST else ''}): one that writes past the fence abandons the promote"
        for topic, newest in sorted(topics.items())
    ]
    if seen.unnamed:
        lines.append(
            f"not every producer could be named: {listed(seen.unnamed, _MOST, apart='; ', last='; and ')}"
        )
    return lines
