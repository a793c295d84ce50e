"""The end of a certificate's validity, read from PEM text: the standard library tells it of a peer's certificate only.

Parses as much DER as RFC 5280 needs up to the validity: tbsCertificate is [version], serial, algorithm, issuer, validity,
each a tag, a length and content.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime

from wire.errors import InvalidSecurityConfig

_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


def first_end(pem: str) -> datetime | None:
    """The earliest end of all certificates in the text, because a chain fails with its first; None if there is none."""
    ends = [_not_after(block) for block in _BLOCK.findall(pem)]
    return min(ends, default=None)


def _not_after(block: str) -> datetime:
    try:
        _, certificate, _ = _element(ssl.PEM_cert_to_DER_cert(block), _SEQUENCE)
        _, rest, _ = _element(certificate, _SEQUENCE)
        if rest[0] == _VERSION:
            rest = _element(rest)[2]
        for _ in range(3):  # serial, algorithm, issuer
            rest = _element(rest)[2]
        _, validity, _ = _element(rest, _SEQUENCE)
        _, _, rest = _element(validity)
        kind, text, _ = _element(rest)
        form = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}[kind]
        end = datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)
    except (IndexError, KeyError, ValueError) as error:
        raise InvalidSecurityConfig(
            "a certificate cannot be read: its validity is not where it should be"
        ) from error
    # Two digits: 1950 to 2049, and strptime reads 69 to 99 as 19xx already.
    return end.replace(year=end.year - 100) if kind == _UTC_TIME and end.year >= 2050 else end


def _element(der: bytes, wanted: int | None = None) -> tuple[int, bytes, bytes]:
    """Tag, content and what follows."""
    tag, length, at = der[0], der[1], 2
    if length & 0x80:
        size = length & 0x7F
        length, at = int.from_bytes(der[2 : 2 + size], "big"), 2 + size
    if wanted not in (None, tag) or len(der) < at + length:
        raise ValueError
    return tag, der[at : at + length], der[at + length :]
