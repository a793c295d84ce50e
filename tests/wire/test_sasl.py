"""SCRAM against the published example and against servers that lie."""

from __future__ import annotations

import pytest

from wire.client.sasl import ScramClient, ScramError
from wire.client.security import SaslCredentials

# RFC 7677, section 3
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def client() -> ScramClient:
    return ScramClient(SaslCredentials("SCRAM-SHA-256", "user", "pencil"), NONCE)


def test_the_published_exchange() -> None:
    scram = client()
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert scram.final(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    scram.verify(SERVER_FINAL)


@pytest.mark.parametrize(
    "server_final",
    [b"", b"v=", b"v=AAAA", b"v=***", b"e=other-error", b"\xff\xfe", SERVER_FINAL[:-2] + b"A="],
)
def test_a_server_that_does_not_know_the_password(server_final: bytes) -> None:
    scram = client()
    scram.first()
    scram.final(SERVER_FIRST)
    with pytest.raises(ScramError):
        scram.verify(server_final)


def test_a_server_that_skips_to_the_end() -> None:
    with pytest.raises(ScramError):
        client().verify(b"v=")


@pytest.mark.parametrize(
    "server_first",
    [
        b"",
        b"\xff",
        b"r=other,s=QUJD,i=4096",
        f"r={NONCE},s=QUJD,i=4096".encode(),
        f"r={NONCE}x,s=***,i=4096".encode(),
        f"r={NONCE}x,s=QUJD".encode(),
        f"r={NONCE}x,s=QUJD,i=many".encode(),
        f"r={NONCE}x,s=QUJD,i=1".encode(),
        f"r={NONCE}x,s=QUJD,i=2000000000".encode(),
    ],
)
def test_a_server_whose_first_message_is_wrong(server_first: bytes) -> None:
    with pytest.raises(ScramError):
        client().final(server_first)


def test_names_are_escaped() -> None:
    scram = ScramClient(SaslCredentials("SCRAM-SHA-512", "a=b,c", "p"), "n")
    assert scram.first() == b"n,,n=a=3Db=2Cc,r=n"
