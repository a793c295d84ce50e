"""The names that we have for the topics of a cluster, where they are not its own: each is a prefix and its own name.

Names are exchanged where a message is encoded and decoded, so that all that lies above knows one name for a topic. A message
whose topics would go unseen is refused: a name that is not exchanged would be that of another topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from wire.errors import LocalProtocolError
from wire.frames.fetch import FetchRequest, FetchResponse
from wire.frames.types import TOPIC_RESOURCE


class _Field(NamedTuple):
    """The field of a topic's name in each entry of a list, of the request and of the answer."""

    entries: str
    name: str
    answered: str | None = None  # the list's name in the answer, where it is another


_TOPICS: Final = _Field("topics", "name")
_NAMED: Final[Mapping[str, _Field]] = {
    "create_topics": _TOPICS,
    "describe_log_dirs": _Field("topics", "topic"),
    "describe_producers": _TOPICS,
    "list_offsets": _TOPICS,
    "metadata": _TOPICS,
    "offset_for_leader_epoch": _Field("topics", "topic"),
    "produce": _Field("topic_data", "name", "responses"),
}
_CONFIGS: Final = "describe_configs"
_LOG_DIRS: Final = "describe_log_dirs"
# Topics are in none of these, or (ACLs, offsets of groups) whoever asks has to know that they are the cluster's
# own names.
_OWN_NAMES: Final = frozenset(
    {
        "api_versions",
        "consumer_group_describe",
        "describe_acls",
        "describe_client_quotas",
        "describe_cluster",
        "describe_groups",
        "describe_share_group_offsets",
        "describe_user_scram_credentials",
        "find_coordinator",
        "init_producer_id",
        "list_groups",
        "list_transactions",
        "offset_fetch",
        "sasl_authenticate",
        "sasl_handshake",
        "share_group_describe",
        "streams_group_describe",
    }
)


class TopicNames:
    """The two names of a topic: `ours`, and the one that it has `there`."""

    __slots__ = ("prefix",)

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    def ours(self, there: str) -> str:
        return self.prefix + there

    def there(self, ours: str) -> str:
        """LocalProtocolError for a name that cannot be one of ours."""
        if not ours.startswith(self.prefix):
            raise LocalProtocolError(f"topic {ours!r} does not begin with {self.prefix!r}")
        return ours[len(self.prefix) :]

    def request(self, api: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The request as the cluster understands it."""
        if api == _CONFIGS:
            resources = [
                {**one, "resource_name": self.there(one["resource_name"])}
                if int(one["resource_type"]) == TOPIC_RESOURCE
                else one
                for one in fields["resources"]
            ]
            return {**fields, "resources": resources}
        named = _NAMED.get(api)
        if named is None:
            if api not in _OWN_NAMES:
                raise LocalProtocolError("it is not known where this api names topics", api=api)
            return fields
        topics = fields.get(named.entries)
        if topics is None:
            return fields
        return {**fields, named.entries: [{**one, named.name: self.there(one[named.name])} for one in topics]}

    def answer(self, api: str, answer: Any) -> Any:
        """The answer as we understand it."""
        if api == _CONFIGS:
            results = tuple(
                _with(one, "resource_name", self.ours) if int(one.resource_type) == TOPIC_RESOURCE else one
                for one in answer.results
            )
            return _replaced(answer, results=results)
        if api == _LOG_DIRS:
            results = tuple(self._renamed(one, _TOPICS) for one in answer.results)
            return _replaced(answer, results=results)
        named = _NAMED.get(api)
        return answer if named is None else self._renamed(answer, named)

    def _renamed(self, answer: Any, named: _Field) -> Any:
        listed = named.answered or named.entries
        entries = tuple(_with(one, named.name, self.ours) for one in getattr(answer, listed))
        return _replaced(answer, **{listed: entries})

    def fetch_request(self, request: FetchRequest) -> FetchRequest:
        """Topics that are named by their ids stay."""
        return replace(
            request,
            topics=[
                (key if isinstance(key, bytes) else self.there(key), parts) for key, parts in request.topics
            ],
            forgotten=[
                (key if isinstance(key, bytes) else self.there(key), parts)
                for key, parts in request.forgotten
            ],
        )

    def fetch_answer(self, response: FetchResponse) -> FetchResponse:
        return response._replace(
            partitions=[
                part if isinstance(part.key, bytes) else part._replace(key=self.ours(part.key))
                for part in response.partitions
            ]
        )


def _with(entry: Any, name: str, change: Callable[[str], str]) -> Any:
    before = getattr(entry, name)
    return entry if before is None else _replaced(entry, **{name: change(before)})


def _replaced(value: Any, **fields: Any) -> Any:
    """A copy of a named tuple, or of an entity of the schema codec."""
    return value._replace(**fields) if hasattr(value, "_replace") else replace(value, **fields)
