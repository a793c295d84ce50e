"""Text of brokers, clients and other people goes to a terminal without their control characters and without their lines."""

from __future__ import annotations

import inspect
import io
import logging
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest
import structlog
from pydantic import BaseModel
from rich.console import Console

from admin import models, validation_models
from linker.cli import (
    fleet_tables,
    group_tables,
    promote_progress,
    promote_tables,
    tables,
    validate,
    validation_tables,
    verdict,
)
from linker.cli.output import Format, emit
from linker.process.logs import configure_logging

HOSTILE = "a\x1b[2J\x1b]0;t\x07b\r\nFORGED line\u2028FORGED\x9b31mc"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e]")
NAMES: dict[str, Any] = {
    **vars(models),
    **vars(validation_models),
    "Iterable": Iterable,
    "Mapping": Mapping,
    "Callable": Callable,
}


def hostile(kind: Any) -> Any:
    """A value of this type, each text in it hostile."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is str or kind is typing.Any or kind is object:
        return HOSTILE
    if origin in (typing.Union, types.UnionType):
        return hostile(next(one for one in inner if one is not type(None)))
    if origin is typing.Annotated:
        return hostile(inner[0])
    if origin is typing.Literal:
        return inner[0]
    if origin is dict or origin is Mapping or (inspect.isclass(origin) and issubclass(origin, Mapping)):
        return {hostile(inner[0]): hostile(inner[1])}
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple(map(hostile, inner))
    if origin is not None:
        return [hostile(inner[0])]
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        hints = typing.get_type_hints(kind, {**vars(inspect.getmodule(kind)), **NAMES}, include_extras=True)
        return kind.model_construct(**{name: hostile(hints[name]) for name in kind.model_fields})
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return next(iter(kind))
    if kind is datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)
    if kind is bool:
        return True
    return kind(7)


def printers() -> list[Callable[..., str]]:
    found = []
    for module in (tables, fleet_tables, promote_tables, group_tables, validation_tables, verdict):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                hints = typing.get_type_hints(function, NAMES)
                if hints.get("return") is str:
                    found.append(function)
    return found


@pytest.mark.parametrize(
    "printer", printers(), ids=lambda one: f"{one.__module__.rpartition('.')[2]}.{one.__name__}"
)
def test_a_table_is_ours_alone(printer: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    hints = typing.get_type_hints(printer, NAMES, include_extras=True)
    parameters = inspect.signature(printer).parameters
    given = {name: hostile(hints[name]) for name, one in parameters.items() if one.default is one.empty}
    text = printer(**given)
    assert "FORGED" in text or not CONTROL.search(text)
    assert CONTROL.search(text) is None, text
    assert not any(line.lstrip().startswith("FORGED") for line in text.splitlines()), text
    emit([], Format.TABLE, lambda: HOSTILE)
    assert CONTROL.search(capsys.readouterr().out) is None


def live_promote(job: models.PromoteJobStatus) -> list[Any]:
    return [promote_progress.drawn(0.0, job, ""), promote_progress.drawn(0.0, job, HOSTILE)]


def test_so_are_the_live_views() -> None:
    job = hostile(models.PromoteJobStatus)
    views = [
        *live_promote(job),
        validate._told(hostile(validation_models.ValidationRun)),
    ]
    for view in views:
        out = io.StringIO()
        Console(file=out, force_terminal=False, width=400).print(view, markup=False)
        assert CONTROL.search(out.getvalue()) is None, out.getvalue()
        assert not any(line.lstrip().startswith("FORGED") for line in out.getvalue().splitlines())


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_log_line_is_one_line(style: str) -> None:
    root, out = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level
    try:
        configure_logging("info", style, out)
        log = logging.getLogger("test")
        log.warning("link %s: %s", HOSTILE, HOSTILE)
        log.warning("words", extra={"group": HOSTILE, "color_message": "\x1b[36mHello\x1b[0m", HOSTILE: 1})
        structlog.get_logger("test").info("words", group=[HOSTILE], what={HOSTILE: HOSTILE})
        assert len(out.getvalue().splitlines()) == 3
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            log.exception("failed %s", HOSTILE)
        said = out.getvalue()
    finally:
        root.handlers[:], root.level = before
        structlog.reset_defaults()
    assert CONTROL.search(said) is None, said
    assert "color_message" not in said
    assert not any(line.startswith("FORGED") for line in said.splitlines()), said
    assert "Traceback" in said


def test_a_log_line_keeps_what_people_write() -> None:
    root, out = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level
    try:
        configure_logging("info", "console", out)
        logging.getLogger("test").info("Größe 5 µs – 東京 [x] {y} \\ 'z'")
        said = out.getvalue()
    finally:
        root.handlers[:], root.level = before
        structlog.reset_defaults()
    assert "Größe 5 µs – 東京 [x] {y} \\ 'z'" in said
