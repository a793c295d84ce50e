"""The socket of a channel: TCP or TLS to one address.

The address is the one that a broker advertises. An address that cannot be looked up (an empty label, a port above 65535) is
no bug of ours and fails this attempt only, so every failure to connect is raised as a WireError.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from wire.client.channel import Channel
from wire.errors import AuthenticationFailed, ConnectionLost, HungUp, describe
from wire.frames.types import format_address


async def connect(channel: Channel, host: str, port: int, context: ssl.SSLContext | None) -> None:
    """Connect the channel, with TLS if there is a context; the deadline is the caller's.

    ConnectionLost(sent=False) if the peer cannot be reached, AuthenticationFailed when TLS refuses.
    """
    peer = format_address(host, port)
    try:
        if not 0 < port < 65_536:
            raise ValueError("a port is 1 to 65535")  # uvloop would connect to its lower 16 bits
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: channel, host, port, ssl=context
        )
        _never_silent(transport)
    except ssl.SSLError as error:
        raise AuthenticationFailed(f"TLS failed: {describe(error)}", peer=peer) from error
    except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as error:
        raise HungUp(describe(error), sent=False, peer=peer) from error  # during the TLS handshake
    except OSError as error:
        raise ConnectionLost(describe(error), sent=False, peer=peer) from error
    except ValueError as error:  # UnicodeError above all, of a name that IDNA cannot encode
        raise ConnectionLost(
            f"host {host!r} and port {port} are no address ({describe(error)}); correct what names them: "
            "advertised.listeners of that broker, or bootstrap.servers",
            sent=False,
            peer=peer,
        ) from error


def _never_silent(transport: asyncio.BaseTransport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None:
        # A peer that vanished without a FIN must be noticed on connections that only wait.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
