"""Names in the paths of the admin API: a percent-encoded text is one segment, whatever characters it has.

Starlette matches routes against the decoded path. There an encoded slash is a separator (`DELETE /links/a%2Fmirrors%2Fx`
would delete a mirror), and a name that ends in a line break loses it or finds no route. So an encoded slash and an encoded
percent sign stay encoded until the route is found; the convertors decode them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from starlette.convertors import Convertor, register_url_convertor

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_SLASH_OR_PERCENT = re.compile(r"%(?=2[Ff]|25)")


class TextConvertor(Convertor[str]):
    """`{name:text}`: one segment. An empty one matches too, so that the parameter's own check refuses it by name."""

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        return value.replace("%2F", "/").replace("%2f", "/").replace("%25", "%")

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


class RestConvertor(TextConvertor):
    """`{name:rest}`: the rest of the path. Slashes need no encoding here."""

    regex = r"[\s\S]*"


register_url_convertor("text", TextConvertor())
register_url_convertor("rest", RestConvertor())


class SegmentsMiddleware:
    """Leaves encoded slashes and percent signs in the path that routes are matched against."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        if raw is not None:
            scope = {**scope, "path": unquote(_SLASH_OR_PERCENT.sub("%25", raw.decode("latin-1")))}
        await self._app(scope, receive, send)
