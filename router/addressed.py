"""Admin requests that are addressed to this broker: answered as one that has no log, no group and no transaction.

Authorization stays the real brokers': they are asked, over the client's own connection, what they would say to the same
client of the same kind of thing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from router import apis, broker_resource
from router.authorize import Authorizer
from router.passthrough import Upstream
from router.ports import RouterPorts
from router.split import Fields, answer, ask, decoded, in_order, pass_rest
from wire.frames.error_codes import CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, LOG_DIR_NOT_FOUND
from wire.frames.types import BROKER_RESOURCE, TOPIC_RESOURCE, AclRight
from wire.server.listener import Exchange

LOG_DIR: Final = "kafka-linker"
"""The one directory that is told of: Kafka's admin client takes none at all for a refusal."""

_NOTHING: Final[Mapping[int, str]] = MappingProxyType({})
_UNKNOWN_BYTES: Final = -1
_DELETE: Final = 1  # AlterConfigOp.DELETE
_SET: Final = 0
_STATES: Final = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    }
)
_CLIENT_ID: Final = "kafka-linker-authorizer"


class Addressed:
    """A request of one client connection."""

    def __init__(self, ports: RouterPorts, upstream: Upstream, authorizer: Authorizer) -> None:
        self._ports = ports
        self._upstream = upstream
        self._authorizer = authorizer

    def handle(self, exchange: Exchange) -> None:
        match exchange.header.api_key:
            case apis.LIST_GROUPS:
                # Tools ask every broker and put the answers together: another broker's groups would be in it twice.
                answer(exchange, {"error_code": 0, "groups": []})
            case apis.LIST_TRANSACTIONS:
                unknown = [state for state in decoded(exchange).state_filters if state not in _STATES]
                answer(
                    exchange, {"error_code": 0, "unknown_state_filters": unknown, "transaction_states": []}
                )
            case apis.DESCRIBE_LOG_DIRS:
                self._describe_log_dirs(exchange)
            case apis.ALTER_REPLICA_LOG_DIRS:
                self._alter_replica_log_dirs(exchange)
            case apis.DESCRIBE_CONFIGS:
                self._describe_configs(exchange)
            case _:
                self._alter_configs(exchange)

    # --- log directories -----------------------------------------------------------------------------------------

    def _describe_log_dirs(self, exchange: Exchange) -> None:
        allowed = self._on_cluster(AclRight.DESCRIBE, partial(self._describe_log_dirs, exchange))
        if allowed is None:
            return
        if not allowed:
            answer(exchange, {"error_code": CLUSTER_AUTHORIZATION_FAILED, "results": []})
            return
        one = {
            "error_code": 0,
            "log_dir": LOG_DIR,
            "topics": [],
            "total_bytes": _UNKNOWN_BYTES,
            "usable_bytes": _UNKNOWN_BYTES,
            "is_cordoned": True,
        }
        answer(exchange, {"error_code": 0, "results": [one]})

    def _alter_replica_log_dirs(self, exchange: Exchange) -> None:
        """No directory of that name is here."""
        allowed = self._on_cluster(AclRight.ALTER, partial(self._alter_replica_log_dirs, exchange))
        if allowed is None:
            return
        error = LOG_DIR_NOT_FOUND if allowed else CLUSTER_AUTHORIZATION_FAILED
        results: dict[str, list[Fields]] = {}
        for directory in decoded(exchange).dirs:
            for topic in directory.topics:
                partitions = results.setdefault(topic.name, [])
                partitions += [{"partition_index": index, "error_code": error} for index in topic.partitions]
        answer(
            exchange,
            {"results": [{"topic_name": name, "partitions": parts} for name, parts in results.items()]},
        )

    def _on_cluster(self, operation: AclRight, again: Callable[[], None]) -> bool | None:
        """None: it is being asked; again() comes with the answer."""
        allowed = self._authorizer.on_cluster(operation)
        if allowed is None:
            self._authorizer.ask_cluster(again)
        return allowed

    # --- configs ---------------------------------------------------------------------------------------------------

    def _describe_configs(self, exchange: Exchange) -> None:
        request = decoded(exchange)
        mine, tells = self._mine(request.resources), self._told(request.resources)
        if not mine:
            if tells:
                self._with_rest(exchange, request, {}, "results", tells)
            else:
                self._upstream.forward(exchange)
            return
        if all(_for_sidecars(request.resources[index]) for index in mine):
            # It tells no more of the cluster than every client may know: asked of no broker, and no right is needed.
            answers = {index: self._described(request.resources[index], 0, None) for index in mine}
            self._with_rest(exchange, request, answers, "results", tells)
            return
        # The same of the cluster's default, for which the same right is needed.
        probe = {"resource_type": BROKER_RESOURCE, "resource_name": "", "configuration_keys": ["broker.id"]}

        def probed(reply: Any) -> None:
            (told,) = reply.results[:1]
            answers = {
                index: self._described(request.resources[index], int(told.error_code), told.error_message)
                for index in mine
            }
            self._with_rest(exchange, request, answers, "results", tells)

        ask(self._upstream, "describe_configs", 1, {"resources": [probe]}, _CLIENT_ID, probed)

    def _told(self, resources: Any) -> dict[int, str]:
        """Of mirrors: where they come from, if it is asked for by name. A real broker is asked first whether the client may
        know the topic's configs."""
        return {
            index: value
            for index, one in enumerate(resources)
            if int(one.resource_type) == TOPIC_RESOURCE
            and broker_resource.UPSTREAM in (one.configuration_keys or ())
            and (value := self._ports.upstream(one.resource_name)) is not None
        }

    def _described(self, resource: Any, error: int, message: str | None) -> Fields:
        kind, name = int(resource.resource_type), resource.resource_name
        found: list[Fields] = []
        if not error:
            message = broker_resource.misaddressed(self._ports.broker_id, name)
            if message is not None:
                error = INVALID_REQUEST
            elif kind == BROKER_RESOURCE:
                image = self._ports.image().brokers.get(self._ports.broker_id)
                found = broker_resource.configs(self._ports.broker_id, image, resource.configuration_keys)
                if broker_resource.PRODUCER_IDS in (resource.configuration_keys or ()):
                    found.append(
                        broker_resource.row(broker_resource.PRODUCER_IDS, self._ports.producer_ids())
                    )
        return _resource(resource, error, message) | {"configs": found}

    def _alter_configs(self, exchange: Exchange) -> None:
        """Of the old kind, and incremental ones."""
        request = decoded(exchange)
        mine = self._mine(request.resources)
        if not mine:
            self._upstream.forward(exchange)
            return
        # The target is asked about the same change of the cluster's default, without making it: whether this client
        # may, and whether the value is one.
        throttles = {
            config.name: (int(getattr(config, "config_operation", _SET)), config.value)
            for index in mine
            for config in request.resources[index].configs
            if config.name in broker_resource.THROTTLES
        } or {broker_resource.THROTTLES[0]: (_DELETE, None)}
        probe = {
            "resource_type": BROKER_RESOURCE,
            "resource_name": "",
            "configs": [
                {"name": name, "config_operation": operation, "value": value}
                for name, (operation, value) in throttles.items()
            ],
        }

        def probed(reply: Any) -> None:
            (told,) = reply.responses[:1]
            answers = {
                index: self._altered(request.resources[index], int(told.error_code), told.error_message)
                for index in mine
            }
            self._with_rest(exchange, request, answers, "responses")

        fields = {"resources": [probe], "validate_only": True}
        ask(self._upstream, "incremental_alter_configs", 0, fields, _CLIENT_ID, probed)

    def _altered(self, resource: Any, error: int, message: str | None) -> Fields:
        if not error:
            us = self._ports.broker_id
            message = broker_resource.misaddressed(us, resource.resource_name) or broker_resource.refusal(
                us, int(resource.resource_type), [config.name for config in resource.configs]
            )
            error = 0 if message is None else INVALID_REQUEST
        return _resource(resource, error, message)

    def _mine(self, resources: Any) -> list[int]:
        return [
            index
            for index, one in enumerate(resources)
            if broker_resource.ours(int(one.resource_type), one.resource_name)
        ]

    def _with_rest(
        self,
        exchange: Exchange,
        request: Any,
        answers: dict[int, Fields],
        under: str,
        told: Mapping[int, str] = _NOTHING,
    ) -> None:
        """The other resources go to a real broker in one request; the answers come in the order of the question. `told`:
        by resource, the value that only a sidecar tells."""
        count = len(request.resources)
        rest = [one for index, one in enumerate(request.resources) if index not in answers]
        if not rest:
            answer(exchange, {under: [answers[index] for index in range(count)]})
            return

        def replied(reply: Any) -> None:
            found = in_order(count, answers, getattr(reply, under))
            for index, value in told.items():
                if not int(found[index].error_code):
                    configs = [*found[index].configs, broker_resource.row(broker_resource.UPSTREAM, value)]
                    found[index] = _resource(request.resources[index], 0, None) | {"configs": configs}
            answer(exchange, {"throttle_time": reply.throttle_time, under: found})

        others = {
            name: getattr(request, name)
            for name in ("include_synonyms", "include_documentation", "validate_only")
            if hasattr(request, name)
        }
        pass_rest(self._upstream, exchange, {"resources": rest, **others}, replied)


def _for_sidecars(resource: Any) -> bool:
    return bool(list(resource.configuration_keys or ()) == [broker_resource.PRODUCER_IDS])


def _resource(resource: Any, error: int, message: str | None) -> Fields:
    return {
        "error_code": error,
        "error_message": message if error else None,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
