"""Logging: structlog and the standard library through one pipeline to stderr, secrets redacted.

Modules log with `logging.getLogger(__name__)` or `structlog.get_logger(__name__)`; both come out the same.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from wire.client.secrets import redact

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_MAX_DEPTH = 6


def redact_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Hide values under sensitive names, at any depth: `properties={"sasl.password": ...}` too."""
    for key in event:
        if key not in ("event", "level", "logger", "timestamp"):
            event[key] = _redacted(key, event[key], _MAX_DEPTH)
    return event


def _redacted(key: str, value: object, depth: int) -> object:
    if isinstance(value, str):
        return redact(key, value)
    if isinstance(value, bytes):
        return redact(key, value.decode("latin-1")).encode("latin-1")
    if depth == 0:
        return value
    if isinstance(value, dict):
        return {name: _redacted(f"{key}.{name}", item, depth - 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(key, item, depth - 1) for item in value]
    return value


def _plain(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For a console: texts of brokers and clients in it neither begin lines of their own nor steer a terminal."""
    for key in list(event):
        value = event.pop(key)
        if key == "exception":  # several lines, which nobody takes for lines of the log
            event[key] = "\n".join("    " + _printable(line) for line in str(value).split("\n"))
        elif isinstance(value, (dict, list, tuple)):
            event[_printable(key)] = _printable(repr(value))
        else:
            event[_printable(key)] = _printable(value) if isinstance(value, str) else value
    return event


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _without_colours(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """uvicorn says everything twice, the second time in colours."""
    event.pop("color_message", None)
    return event


def configure_logging(level: str = "info", style: str = "console", stream: TextIO | None = None) -> None:
    """Set up the root logger once, at the start of the process; a second call replaces the first."""
    out = sys.stderr if stream is None else stream
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _without_colours,
        redact_event,
    ]
    renderer: structlog.typing.Processor
    # Plain tracebacks: rich ones print local variables, and those may hold secrets.
    shared.append(structlog.processors.format_exc_info)
    if style == "json":
        renderer = structlog.processors.JSONRenderer(default=str)
    else:
        shared.append(_plain)
        renderer = structlog.dev.ConsoleRenderer(
            colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            # ExtraAdder takes over `extra={...}` of the standard library: before the redaction.
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(_LEVELS[level])
    # One line per request of every poller is noise; errors of the server itself still come through.
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
