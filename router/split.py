"""A request of which a part is ours to answer: the rest goes to a real broker as the client's own, and both answers are
put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from router.passthrough import Upstream
from wire.errors import MalformedFrame
from wire.frames.types import TopicPartition
from wire.schema import codec
from wire.server.listener import Exchange

Fields = dict[str, Any]


def decoded(exchange: Exchange) -> Any:
    """The request's entity."""
    _, request = codec.decode_request(exchange.frame)
    return request


def answer(exchange: Exchange, fields: Mapping[str, object]) -> None:
    """In the version that was asked in."""
    header = exchange.header
    name = codec.api_name(header.api_key)
    frame = codec.encode_response(name, header.api_version, header.correlation_id, fields)
    exchange.reply([len(frame).to_bytes(4, "big"), frame])


def pass_rest(
    upstream: Upstream, exchange: Exchange, fields: Mapping[str, object], then: Callable[[Any], None]
) -> None:
    """Ask a real broker for the rest of the request, under the client's own login and client id."""
    header = exchange.header
    ask(upstream, codec.api_name(header.api_key), header.api_version, fields, header.client_id, then)


def ask(
    upstream: Upstream,
    api: str,
    version: int,
    fields: Mapping[str, object],
    client_id: str | None,
    then: Callable[[Any], None],
) -> None:
    """Nothing comes if the broker's connection ends first: the client's ends with it."""
    frame = codec.encode_request(
        api, version, fields, correlation_id=upstream.next_correlation_id(), client_id=client_id
    )
    upstream.owed += 1

    def replied(reply: memoryview) -> None:
        upstream.owed -= 1
        then(codec.decode_response(api, version, reply, whole=True))

    upstream.send(memoryview(frame), replied)


def by_topic(answers: Mapping[TopicPartition, Fields]) -> list[Fields]:
    """Group the answers of partitions under their topics, as responses have them."""
    topics: dict[str, list[Fields]] = {}
    for tp, fields in answers.items():
        topics.setdefault(tp.topic, []).append({"partition_index": tp.partition, **fields})
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]


def merged(ours: list[Fields], theirs: Any) -> list[Fields]:
    """A topic that is in both has one entry."""
    found = {topic["name"]: topic for topic in ours}
    for topic in theirs:
        entry = found.setdefault(topic.name, {"name": topic.name, "partitions": []})
        entry["partitions"] = [*entry["partitions"], *topic.partitions]
    return list(found.values())


def in_order(count: int, ours: Mapping[int, Any], theirs: Any) -> list[Any]:
    """Answers as the resources were asked for."""
    rest = iter(theirs)
    try:
        return [ours[index] if index in ours else next(rest) for index in range(count)]
    except StopIteration:
        raise MalformedFrame("the real broker answered fewer resources than it was asked for") from None
