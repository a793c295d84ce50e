"""The admin API of a sidecar, put together when everything else serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from admin.loading import load_admin
from admin.own_token import FILE, keep_token
from linker.config.model import SidecarConfig
from linker.process.own_certificates import own_certificates
from linker.running import Running
from linker.snapshot import take_snapshot
from wire.errors import LinkerError
from wire.frames.types import format_address

log = logging.getLogger(__name__)


class AdminTokenError(LinkerError):
    """The token of the admin API cannot be kept."""


async def start_admin(sidecar: Running, stack: contextlib.AsyncExitStack) -> None:
    """Start the admin API; closing the stack stops it."""
    # Late, because the framework is heavy to load and the brokers are not to wait for it; and in a thread, because
    # what is served by now would stand still for as long.
    await asyncio.to_thread(load_admin, sidecar.fleet.alone)
    from admin.api import create_app
    from admin.metrics import Metrics
    from admin.server import AdminServer
    from linker.service import SidecarService

    token, token_file = _token(sidecar.config.sidecar)
    forwarder = None
    if not sidecar.fleet.alone:
        from admin.forward import Forwarder

        forwarder = Forwarder(sidecar.target.broker_id, sidecar.fleet.route)
        stack.push_async_callback(forwarder.close)
    ends = own_certificates(sidecar.config)
    app = create_app(
        SidecarService(sidecar),
        Metrics(lambda: take_snapshot(sidecar, ends)),
        version=sidecar.version,
        token=token,
        token_file=token_file,
        forwarder=forwarder,
    )
    host, port = sidecar.config.sidecar.admin_address()
    server = AdminServer(app, host, port)
    await server.start()
    stack.push_async_callback(server.close)
    log.info(
        "admin API on http://%s%s",
        format_address(host, server.port),
        "" if token_file is None else f", its token is in {token_file}",
    )


def _token(settings: SidecarConfig) -> tuple[str | None, Path | None]:
    """The token of the admin API; its file, if it is made here; twice None where everybody on this machine may ask."""
    if settings.admin_token is not None:
        return settings.admin_token.get_secret_value(), None
    if not settings.admin_token_required:
        log.warning(
            "admin.token.required is false: every user of this machine may promote and delete mirrors"
        )
        return None, None
    secret = settings.control_secret
    try:
        return keep_token(
            settings.state_dir.absolute(), None if secret is None else secret.get_secret_value()
        )
    except OSError as error:
        raise AdminTokenError(
            f"cannot write the admin API's token, {settings.state_dir / FILE}: {error.strerror or error}"
        ) from error
