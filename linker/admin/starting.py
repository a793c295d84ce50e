"""The admin API of a sidecar, put together when everything else serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from linker.admin.loading import load_admin
from linker.snapshot import take_snapshot
from wire.types import format_address

if TYPE_CHECKING:
    from linker.sidecar import Sidecar

log = logging.getLogger(__name__)


async def start_admin(sidecar: Sidecar, stack: contextlib.AsyncExitStack) -> None:
    """It ends with the stack."""
    # Late, because the framework is heavy to load and the brokers are not to wait for it; and in a thread, because
    # what is served by now would stand still for as long.
    await asyncio.to_thread(load_admin, sidecar.fleet.alone)
    from linker.admin.api import create_app
    from linker.admin.server import AdminServer
    from linker.metrics import Metrics
    from linker.service import SidecarService

    token = sidecar.config.sidecar.admin_token
    forwarder = None
    if not sidecar.fleet.alone:
        from linker.admin.forward import Forwarder

        forwarder = Forwarder(sidecar.target.broker_id, sidecar.fleet.route)
        stack.push_async_callback(forwarder.close)
    app = create_app(
        SidecarService(sidecar),
        Metrics(lambda: take_snapshot(sidecar)),
        version=sidecar.version,
        token=None if token is None else token.get_secret_value(),
        forwarder=forwarder,
    )
    host, port = sidecar.config.sidecar.admin_address()
    server = AdminServer(app, host, port)
    await server.start()
    stack.push_async_callback(server.close)
    log.info("admin API on http://%s", format_address(host, server.port))
