"""Client of the admin API, for the CLI and for scripts. Blocking; use a thread to call it from asyncio.

Imports neither the service nor the wire package: a command that only asks has to start quickly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from admin.models import (
    ChangeResult,
    ControllerDescription,
    CreateLinkRequest,
    CreateMirrorsRequest,
    DemoteGroupsRequest,
    DoctorReport,
    FailoverPlan,
    FailoverRequest,
    GroupDescription,
    GroupSummary,
    LagReport,
    LinkDescription,
    LinkSummary,
    MirrorDescription,
    MirrorSummary,
    PromoteGroupsRequest,
    PromoteJobStatus,
    PromotePlan,
    PromoteRequest,
    SidecarDescription,
    SidecarStatus,
    Status,
    UpdateLinkRequest,
)
from admin.own_token import HEADER, found_token
from admin.validation_models import (
    ContinuousValidationRequest,
    LinkValidationDescription,
    StartValidationRequest,
    ValidationRun,
)

DEFAULT_URL = "http://127.0.0.1:8080"
MAX_ANSWER_BYTES = 256 << 20

T = TypeVar("T")


class AdminError(Exception):
    """One line why a request did not succeed. `status` is 0 if there was no answer at all."""

    def __init__(self, message: str, *, status: int = 0, error_code: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code

    @property
    def unreachable(self) -> bool:
        return self.status == 0


class AdminClient:
    """One method per operation; each raises AdminError."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout: float = 70.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        parsed = _parse_url(url)
        self.url = str(parsed).rstrip("/")
        # trust_env=False: no proxy of the environment between an operator and a loopback address.
        self._http = httpx.Client(
            base_url=parsed,
            timeout=httpx.Timeout(timeout, connect=5.0),
            headers={} if token is None else {"authorization": f"Bearer {token}"},
            trust_env=False,
            # Loading certificates takes longer than asking. Redirects, maybe to https, are not followed.
            verify=parsed.scheme == "https",
            transport=transport,
        )

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # --- links

    def list_links(self) -> list[LinkSummary]:
        return self._call("GET", "/v1/links", list[LinkSummary])

    def create_link(self, request: CreateLinkRequest, *, dry_run: bool = False) -> ChangeResult:
        return self._change("POST", "/v1/links", dry_run, request)

    def describe_link(self, link: str) -> LinkDescription:
        return self._call("GET", f"/v1/links/{_quoted(link)}", LinkDescription)

    def update_link(self, link: str, request: UpdateLinkRequest, *, dry_run: bool = False) -> ChangeResult:
        return self._change("PATCH", f"/v1/links/{_quoted(link)}", dry_run, request)

    def delete_link(self, link: str, *, force: bool = False, dry_run: bool = False) -> ChangeResult:
        query = {"dry_run": dry_run, "force": force}
        return self._call("DELETE", f"/v1/links/{_quoted(link)}", ChangeResult, query=query)

    def lag(self, link: str, topics: Iterable[str] = ()) -> LagReport:
        return self._call("GET", f"/v1/links/{_quoted(link)}/lag", LagReport, query={"topic": list(topics)})

    def doctor(self, link: str) -> DoctorReport:
        return self._call("GET", f"/v1/links/{_quoted(link)}/doctor", DoctorReport)

    # --- mirrors

    def list_mirrors(self, link: str) -> list[MirrorSummary]:
        return self._call("GET", f"/v1/links/{_quoted(link)}/mirrors", list[MirrorSummary])

    def create_mirrors(
        self, link: str, request: CreateMirrorsRequest, *, dry_run: bool = False
    ) -> ChangeResult:
        return self._change("POST", f"/v1/links/{_quoted(link)}/mirrors", dry_run, request)

    def describe_mirror(self, link: str, topic: str) -> MirrorDescription:
        return self._call("GET", _mirror(link, topic), MirrorDescription)

    def delete_mirror(
        self, link: str, topic: str, *, keep_data: bool = False, force: bool = False, dry_run: bool = False
    ) -> ChangeResult:
        query = {"dry_run": dry_run, "keep_data": keep_data, "force": force}
        return self._call("DELETE", _mirror(link, topic), ChangeResult, query=query)

    def pause_mirror(self, link: str, topic: str, *, dry_run: bool = False) -> ChangeResult:
        return self._change("POST", f"{_mirror(link, topic)}:pause", dry_run)

    def resume_mirror(
        self, link: str, topic: str, *, restart: bool = False, dry_run: bool = False
    ) -> ChangeResult:
        query = {"dry_run": dry_run, "restart": restart}
        return self._call("POST", f"{_mirror(link, topic)}:resume", ChangeResult, query=query)

    def repair_mirror(
        self, link: str, topic: str, *, drop_target_records: bool = False, dry_run: bool = False
    ) -> ChangeResult:
        query = {"dry_run": dry_run, "drop_target_records": drop_target_records}
        return self._call("POST", f"{_mirror(link, topic)}:repair", ChangeResult, query=query)

    # --- promotes

    def plan_promote(self, link: str, request: PromoteRequest) -> PromotePlan:
        path = f"/v1/links/{_quoted(link)}/mirrors:promote"
        return self._call("POST", path, PromotePlan, body=request, query={"dry_run": True})

    def promote(self, link: str, request: PromoteRequest) -> PromoteJobStatus:
        return self._call(
            "POST", f"/v1/links/{_quoted(link)}/mirrors:promote", PromoteJobStatus, body=request
        )

    def plan_failover(self, link: str, request: FailoverRequest) -> FailoverPlan:
        path = f"/v1/links/{_quoted(link)}/mirrors:failover"
        return self._call("POST", path, FailoverPlan, body=request, query={"dry_run": True})

    def failover(self, link: str, request: FailoverRequest) -> PromoteJobStatus:
        return self._call(
            "POST", f"/v1/links/{_quoted(link)}/mirrors:failover", PromoteJobStatus, body=request
        )

    def describe_promote(self, promote_id: str) -> PromoteJobStatus:
        return self._call("GET", f"/v1/promotes/{_quoted(promote_id)}", PromoteJobStatus)

    def follow_promote(
        self,
        promote_id: str,
        seen: Callable[[PromoteJobStatus], None],
        *,
        interval: float = 0.25,
        unreachable_for: float = 60.0,
        lost: Callable[[AdminError], None] = lambda _error: None,
    ) -> PromoteJobStatus:
        """Poll until the promote is over, its evidence closed; `seen` gets each reading.

        A sidecar that restarts goes on with its promotes, so not reaching it is only an error after a while;
        `lost` hears of every failed attempt.
        """
        last_contact = time.monotonic()
        while True:
            try:
                job = self.describe_promote(promote_id)
            except AdminError as error:
                if not (error.unreachable or error.status == 503):
                    raise
                if time.monotonic() - last_contact > unreachable_for:
                    raise AdminError(
                        f"promote {promote_id} goes on, but its progress is not known: {error}"
                    ) from error
                lost(error)
            else:
                last_contact = time.monotonic()
                seen(job)
                if job.over:
                    return job
            time.sleep(interval)

    def list_promotes(self, link: str) -> list[PromoteJobStatus]:
        return self._call("GET", f"/v1/links/{_quoted(link)}/promotes", list[PromoteJobStatus])

    # --- groups

    def list_groups(self, link: str) -> list[GroupSummary]:
        return self._call("GET", f"/v1/links/{_quoted(link)}/groups", list[GroupSummary])

    def describe_group(self, link: str, group: str) -> GroupDescription:
        return self._call("GET", f"/v1/links/{_quoted(link)}/groups/{_quoted(group)}", GroupDescription)

    def promote_groups(
        self, link: str, request: PromoteGroupsRequest, *, dry_run: bool = False
    ) -> ChangeResult:
        return self._change("POST", f"/v1/links/{_quoted(link)}/groups:promote", dry_run, request)

    def demote_groups(
        self, link: str, request: DemoteGroupsRequest, *, dry_run: bool = False
    ) -> ChangeResult:
        return self._change("POST", f"/v1/links/{_quoted(link)}/groups:demote", dry_run, request)

    # --- validation

    def validation(self, link: str) -> LinkValidationDescription:
        return self._call("GET", f"/v1/links/{_quoted(link)}/validation", LinkValidationDescription)

    def start_validation(self, link: str, request: StartValidationRequest) -> ValidationRun:
        return self._call("POST", f"/v1/links/{_quoted(link)}/validation:run", ValidationRun, body=request)

    def continue_validation(
        self, link: str, request: ContinuousValidationRequest, *, dry_run: bool = False
    ) -> ChangeResult:
        return self._change("PATCH", f"/v1/links/{_quoted(link)}/validation", dry_run, request)

    def describe_validation(self, run: str) -> ValidationRun:
        return self._call("GET", f"/v1/validations/{_quoted(run)}", ValidationRun)

    def cancel_validation(self, run: str) -> ValidationRun:
        return self._call("POST", f"/v1/validations/{_quoted(run)}:cancel", ValidationRun)

    # --- sidecars and status

    def list_sidecars(self) -> list[SidecarStatus]:
        return self._call("GET", "/v1/sidecars", list[SidecarStatus])

    def describe_sidecar(self, sidecar_id: int) -> SidecarDescription:
        return self._call("GET", f"/v1/sidecars/{sidecar_id}", SidecarDescription)

    def drain_sidecar(self, sidecar_id: int, *, undo: bool = False, dry_run: bool = False) -> ChangeResult:
        query = {"dry_run": dry_run, "undo": undo}
        return self._call("POST", f"/v1/sidecars/{sidecar_id}:drain", ChangeResult, query=query)

    def leave_sidecar(self, sidecar_id: int, *, dead: bool = False, dry_run: bool = False) -> ChangeResult:
        query = {"dry_run": dry_run, "dead": dead}
        return self._call("POST", f"/v1/sidecars/{sidecar_id}:leave", ChangeResult, query=query)

    def describe_controller(self) -> ControllerDescription:
        return self._call("GET", "/v1/controller", ControllerDescription)

    def status(self) -> Status:
        return self._call("GET", "/v1/status", Status)

    # --- plumbing

    def _change(self, method: str, path: str, dry_run: bool, body: BaseModel | None = None) -> ChangeResult:
        return self._call(method, path, ChangeResult, body=body, query={"dry_run": dry_run})

    def _call(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        body: BaseModel | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> T:
        content = None if body is None else body.model_dump_json().encode()
        headers = {} if body is None else {"content-type": "application/json"}
        response, raw = self._send(method, path, content, headers, query)
        if response.status_code == 401 and self._find_token(response):
            response, raw = self._send(method, path, content, headers, query)
        if not response.is_success:
            raise self._failure(response.status_code, raw)
        try:
            return TypeAdapter(answer).validate_json(raw)
        except ValidationError as error:
            raise AdminError(
                f"{self.url} does not answer like an admin API of this version", status=response.status_code
            ) from error

    def _find_token(self, refusal: httpx.Response) -> bool:
        """Without a token of ours, on this machine: the one that the sidecar made, if we are its user."""
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
            raise AdminError(f"no answer from the admin API at {self.url} in time") from error
        except httpx.HTTPError as error:
            raise AdminError(
                f"cannot reach the admin API at {self.url}: {error or type(error).__name__}"
            ) from error
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise AdminError(f"this cannot be asked for: {error}", status=400) from error
        return response, bytes(raw)

    def _failure(self, status: int, raw: bytes) -> AdminError:
        try:
            body = TypeAdapter(dict[str, Any]).validate_json(raw)
            return AdminError(str(body["message"]), status=status, error_code=int(body["error_code"]))
        except (ValidationError, KeyError, TypeError, ValueError):
            return AdminError(f"{self.url} answered with HTTP status {status}", status=status)


def _parse_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError) as error:
        raise AdminError(f"admin url {text!r} is malformed: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise AdminError(f"admin url {text!r} is malformed: write http://host:port")
    return url


def _quoted(segment: str) -> str:
    """One path segment, whatever its text. The server's own check names what is wrong with it."""
    from urllib.parse import quote

    try:
        quoted = quote(segment, safe="")
    except UnicodeEncodeError as error:
        raise AdminError(f"{segment!r} is not valid UTF-8") from error
    # As they are, . and .. would be taken out of the path.
    return quoted if segment.strip(".") else quoted.replace(".", "%2E")


def _mirror(link: str, topic: str) -> str:
    return f"/v1/links/{_quoted(link)}/mirrors/{_quoted(topic)}"
