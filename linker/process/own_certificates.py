"""The certificates that this sidecar shows others, and when each of them ends (metric linker_certificate_expiry_seconds)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from wire.client.certificates import first_end
from wire.client.security import TlsMaterial
from wire.errors import LinkerError

if TYPE_CHECKING:
    from linker.config.model import Config

log = logging.getLogger(__name__)


def own_certificates(config: Config) -> dict[str, float]:
    """Their ends in seconds since 1970, by who sees them: the name of a listener, `control`, `target`. Read once, as the
    certificates themselves are."""
    settings = config.sidecar
    shown = {
        one.name: settings.listener_properties(one.name)
        for one in settings.client_listeners()
        if one.security_protocol.endswith("SSL")
    }
    for link, section in config.sources.items():
        for one in section.client_listeners():
            if one.security_protocol.endswith("SSL"):
                shown[f"{link} {one.name}"] = section.listener_properties(one.name)
    control = settings.control_tls()
    if control is not None:
        shown["control"] = control
    if config.target.properties.get("security.protocol", "").upper().endswith("SSL"):
        shown["target"] = config.target.client_properties()
    found = {}
    for name, properties in shown.items():
        try:
            chain = TlsMaterial.from_properties(properties).chain
            end = None if chain is None else first_end(chain)
        except LinkerError as error:  # whoever serves with it says what is wrong; a metric stops nothing
            log.warning("the certificate of %s: %s", name, error)
            continue
        if end is not None:
            found[name] = end.timestamp()
    return found
