"""Raw channels to real brokers of the target, one for each client: what the client says is relayed on them, its login too.

Not here: when one is opened and what is said on it (router.passthrough).
"""

from __future__ import annotations

from collections.abc import Mapping

from wire.client.channel import Channel
from wire.client.connecting import connect
from wire.client.security import ClientSecurity
from wire.frames.types import Node


class Upstreams:
    """router.ports.OpenUpstream"""

    def __init__(self, security: ClientSecurity) -> None:
        """security: `relay_security`."""
        self._security = security

    async def __call__(self, node: Node, security_protocol: str) -> Channel:
        channel = Channel()
        context = self._security.ssl_context() if security_protocol.endswith("SSL") else None
        try:
            await connect(channel, node.host, node.port, context)
        except BaseException:
            channel.close()
            raise
        return channel


def relay_security(properties: Mapping[str, str]) -> ClientSecurity:
    """TLS towards real brokers on behalf of clients: the sidecar's trust, never its keystore. With its own certificate
    on these connections, every client would be the sidecar in the brokers' eyes."""
    trusted = {
        name: value
        for name, value in properties.items()
        if name.startswith("ssl.truststore.") or name == "ssl.endpoint.identification.algorithm"
    }
    return ClientSecurity.from_properties({**trusted, "security.protocol": "SSL"})
