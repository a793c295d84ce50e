"""Numbers, times and foreign texts as the page shows them. Every text goes through `escaped`: names and reasons come from
clusters and brokers, and a reader must see what is in them, not what they do."""

from __future__ import annotations

import html
import unicodedata
from datetime import UTC, datetime

MAX_TEXT = 600
# Other, control; format (bidi overrides, zero width); surrogate; private use; line and paragraph separators.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
UNKNOWN = "–"


def escaped(value: object) -> str:
    """A value as HTML text or inside a quoted attribute: visible(), with markup escaped."""
    return html.escape(visible(str(value)), quote=True)


def visible(text: str) -> str:
    """Invisible characters are written out (`\\u202e`), a text of more than MAX_TEXT characters is cut."""
    if len(text) > MAX_TEXT:
        text = text[:MAX_TEXT] + "…"
    return text if text.isascii() and text.isprintable() else "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    if unicodedata.category(char) not in _INVISIBLE:
        return char
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def number(value: float | None) -> str:
    """With thousands separators; an unknown one is a dash."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def short(value: float) -> str:
    """For an axis: 1500 is 1.5k."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def size(value: float | None) -> str:
    """Bytes in binary units."""
    if value is None:
        return UNKNOWN
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:,.3g} TiB"


def rate(value: float) -> str:
    """Bytes per second, for an axis: in decimal units, whose ticks are round."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{value / unit:.3g} {name}/s"
    return f"{value:.3g} B/s"


def moment(ms: int | None) -> str:
    """A time in UTC, to the millisecond."""
    if ms is None:
        return UNKNOWN
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms since 1970"
    return f"{at:%Y-%m-%d %H:%M:%S}.{ms % 1000:03d} UTC"


def duration(ms: float | None) -> str:
    if ms is None:
        return UNKNOWN
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"
