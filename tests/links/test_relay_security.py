"""Connections to real brokers on behalf of clients carry the sidecar's trust and never its identity."""

import ssl

from linker.process.upstreams import relay_security
from tests.fakes.certs import Authority


def test_relay_has_no_client_certificate() -> None:
    security = relay_security(
        {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.certificates": Authority().pem,
            "ssl.truststore.type": "PEM",
            "ssl.keystore.location": "/no/such/keystore.pem",  # would be refused if it were looked at
            "ssl.keystore.type": "PEM",
        }
    )
    context = security.ssl_context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert security.sasl is None
    assert security.tls is not None
    assert security.tls.chain is None
