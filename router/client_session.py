"""Everything the router keeps for one client connection.

Not here: which request is answered by which part (``dispatch.py``), the login itself (``login.py``, ``way_in.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from router.authorize import Authorizer
from router.fetch.session import FetchSession
from router.login import Login
from router.offsets import OffsetSession
from router.passthrough import Upstream
from router.produce.forwarding import ForwardingHub
from router.produce.session import ProduceSession
from wire.errors import WireError
from wire.server.listener import Exchange, ServerConnection


class ClientSession:
    """Everything the router keeps for one client connection; parts are made when first needed."""

    def __init__(
        self,
        hub: ForwardingHub,
        connection: ServerConnection,
        refused_follower: Callable[[ServerConnection, str], None],
    ) -> None:
        self.hub = hub
        self._refused_follower = refused_follower
        self.connection = connection
        self.is_sasl = connection.listener.security_protocol.startswith("SASL_")
        self.login = Login(self.is_sasl)
        self.authenticated = self.login.done  # of each request it is asked
        self.upstream = Upstream(connection, hub.ports, hub.limits, hub.tasks, hub.tell)
        self.authorizer = Authorizer(self.upstream, hub.limits.authorization_ttl, hub.limits.upstream_timeout)
        self.producing: ProduceSession | None = None  # once it has written something
        self._fetch: FetchSession | None = None
        self._offsets: OffsetSession | None = None
        connection.add_close_callback(self._closed)

    @property
    def produce(self) -> ProduceSession:
        if self.producing is None:
            self.producing = ProduceSession(self.hub, self.connection, self.authorizer)
        return self.producing

    @property
    def fetch(self) -> FetchSession:
        if self._fetch is None:
            self._fetch = FetchSession(self.hub, self.connection, self.authorizer)
        return self._fetch

    @property
    def offsets(self) -> OffsetSession:
        if self._offsets is None:
            self._offsets = OffsetSession(self.hub, self.connection, self.authorizer)
        return self._offsets

    def with_cluster_action(
        self, exchange: Exchange, then: Callable[[], None], *, controller: bool = False
    ) -> None:
        """Go on if the client is a broker, or a `controller`, on a listener where these come in. On listeners without SASL
        the real broker is asked as well: it knows whom it takes the client for."""
        ports = self.hub.ports
        inter_broker = ports.control_listeners() if controller else ports.inter_broker_listeners()
        if inter_broker and self.connection.listener.name not in inter_broker:
            self._refused_follower(
                self.connection,
                f"the target's brokers talk to each other on {', '.join(sorted(inter_broker))}",
            )
            exchange.fail(WireError("followers are not served on this listener", api="fetch"))
            return
        allowed = self.authorizer.cluster_action()
        if allowed is None:
            self.authorizer.ask_cluster(
                lambda: self.with_cluster_action(exchange, then, controller=controller)
            )
        elif allowed:
            self.connection.is_broker()
            then()
        else:
            self._refused_follower(
                self.connection,
                "its principal needs ClusterAction and Describe on Cluster at the target (without Describe a broker is "
                "not told its rights)",
            )
            exchange.fail(
                WireError("CLUSTER_ACTION on the cluster is needed to fetch as a follower", api="fetch")
            )

    def note_login(self) -> None:
        """The login may have come a step further."""
        if self.login.done and not self.authenticated:
            self.authenticated = True
            self.connection.logged_in()

    def _closed(self) -> None:
        """Close every part, even if closing another one fails: entries in books that all clients share would stay for
        good otherwise."""
        parts = [part.closed for part in (self.producing, self._fetch, self._offsets) if part is not None]
        errors: list[Exception] = []
        for close in (self.authorizer.close, self.upstream.close, *parts):
            try:
                close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"the end of a client ({self.connection.peer})", errors)
