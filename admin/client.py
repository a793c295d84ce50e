"""Client of the admin API, for the CLI and for scripts. Blocking; use a thread to call it from asyncio.

Imports neither the service nor the wire package: a command that only asks has to start quickly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from admin.models import PromoteJobStatus
from admin.operation import AdminOperation
from admin.operations import Operations
from admin.own_token import HEADER, found_token

DEFAULT_URL = "http://127.0.0.1:8080"
MAX_ANSWER_BYTES = 256 << 20

T = TypeVar("T")


class AdminError(Exception):
    """A request did not succeed; one line with the reason. `status` is 0 if there was no answer at all."""

    def __init__(self, message: str, *, status: int = 0, error_code: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code

    @property
    def unreachable(self) -> bool:
        return self.status == 0

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed soon: there was no answer, or another sidecar becomes the link controller."""
        return self.unreachable or self.status == 503


class AdminClient(Operations):
    """Carries out the operations over HTTP; each raises AdminError."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout: float = 70.0,
    ) -> None:
        parsed = _parse_url(url)
        self.url = str(parsed).rstrip("/")
        # trust_env=False, because a proxy of the environment has no place between an operator and a loopback address.
        self._http = httpx.Client(
            base_url=parsed,
            timeout=httpx.Timeout(timeout, connect=5.0),
            headers={} if token is None else {"authorization": f"Bearer {token}"},
            trust_env=False,
            # Loading certificates would take longer than the request. Redirects are not followed, as they may lead to https.
            verify=parsed.scheme == "https",
        )

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def follow_promote(
        self,
        promote_id: str,
        seen: Callable[[PromoteJobStatus], None],
        *,
        lost: Callable[[AdminError], None] = lambda _error: None,
    ) -> PromoteJobStatus:
        """Poll until the promote is over and its evidence is closed. `seen` gets each reading."""

        def over(job: PromoteJobStatus) -> bool:
            seen(job)
            return job.over

        return poll(
            lambda: self.describe_promote(promote_id),
            over,
            lost=lost,
            goes_on=f"promote {promote_id} goes on",
        )

    def call(self, operation: AdminOperation[..., Any], arguments: Mapping[str, Any]) -> Any:
        path = operation.filled_path({name: _quoted(str(arguments[name])) for name in operation.in_path})
        query = operation.query(arguments)
        body: BaseModel | None = arguments.get("request")
        content = None if body is None else body.model_dump_json().encode()
        headers = {} if body is None else {"content-type": "application/json"}
        response, raw = self._send(operation.method, path, content, headers, query)
        if response.status_code == 401 and self._find_token(response):
            response, raw = self._send(operation.method, path, content, headers, query)
        if not response.is_success:
            raise self._failure(response.status_code, raw)
        try:
            return TypeAdapter(operation.answer).validate_json(raw)
        except ValidationError as error:
            raise AdminError(
                f"{self.url} does not answer like an admin API of this version", status=response.status_code
            ) from error

    def _find_token(self, refusal: httpx.Response) -> bool:
        """Take the token that the sidecar made itself, if we have none, are on its machine and are its user."""
        told = refusal.headers.get(HEADER)
        if told is None or "authorization" in self._http.headers:
            return False
        url = self._http.base_url
        token = found_token(told, url.host, url.port or 80)
        if token is not None:
            self._http.headers["authorization"] = f"Bearer {token}"
        return token is not None

    def _send(
        self,
        method: str,
        path: str,
        content: bytes | None,
        headers: Mapping[str, str],
        query: Mapping[str, Any] | None,
    ) -> tuple[httpx.Response, bytes]:
        try:
            with self._http.stream(method, path, content=content, headers=headers, params=query) as response:
                raw = bytearray()
                for chunk in response.iter_bytes():
                    raw += chunk
                    if len(raw) > MAX_ANSWER_BYTES:
                        raise AdminError(
                            f"the answer of {self.url} is too large", status=response.status_code
                        )
        except httpx.TimeoutException as error:
            raise AdminError(f"the admin API at {self.url} did not answer in time") from error
        except httpx.HTTPError as error:
            raise AdminError(
                f"cannot reach the admin API at {self.url}: {error or type(error).__name__}"
            ) from error
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise AdminError(f"the request cannot be sent: {error}", status=400) from error
        return response, bytes(raw)

    def _failure(self, status: int, raw: bytes) -> AdminError:
        try:
            body = TypeAdapter(dict[str, Any]).validate_json(raw)
            return AdminError(str(body["message"]), status=status, error_code=int(body["error_code"]))
        except (ValidationError, KeyError, TypeError, ValueError):
            return AdminError(f"{self.url} answered with HTTP status {status}", status=status)


def poll(
    read: Callable[[], T],
    over: Callable[[T], bool],
    *,
    lost: Callable[[AdminError], None],
    goes_on: str,
    interval: float = 0.25,
    unreachable_for: float = 60.0,
    tolerated: Callable[[AdminError], bool] = lambda error: error.passing,
) -> T:
    """Read again and again, until `over` says of a reading that it is the last.

    A sidecar that restarts goes on with its work, so failed attempts become an error only after a while. `lost` is called
    with each of them.
    """
    last_contact = time.monotonic()
    while True:
        try:
            one = read()
        except AdminError as error:
            if not tolerated(error):
                raise
            if time.monotonic() - last_contact > unreachable_for:
                raise AdminError(f"{goes_on}, but its progress is not known: {error}") from error
            lost(error)
        else:
            last_contact = time.monotonic()
            if over(one):
                return one
        time.sleep(interval)


def _parse_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError) as error:
        raise AdminError(f"admin url {text!r} is malformed: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise AdminError(f"admin url {text!r} is malformed: write http://host:port")
    return url


def _quoted(segment: str) -> str:
    """A text as one path segment. It is not checked here: the server says what is wrong with it."""
    from urllib.parse import quote

    try:
        quoted = quote(segment, safe="")
    except UnicodeEncodeError as error:
        raise AdminError(f"{segment!r} is not valid UTF-8") from error
    # Encoded as well, because . and .. would be taken out of the path.
    return quoted if segment.strip(".") else quoted.replace(".", "%2E")
