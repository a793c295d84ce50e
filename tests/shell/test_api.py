"""The HTTP edge: paths, codes, errors as JSON, and what hostile or careless callers get."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from admin import limits
from admin import routes as routes_module
from admin import server as server_module
from admin.api import LinkService, create_app
from admin.metrics import Metrics
from admin.samples import Snapshot
from admin.server import AdminServer, AdminServerError
from admin.service import PreflightFailed
from tests.shell.conftest import Running
from tests.shell.memory_service import ClusterTrouble, MemoryService

LINK = {"name": "a", "properties": {"bootstrap.servers": "one:9092"}}


def make_link(http: httpx.Client, *topics: str) -> None:
    assert http.post("/v1/links", json=LINK).status_code == 201
    if topics:
        assert http.post("/v1/links/a/mirrors", json={"topics": list(topics)}).status_code == 201


def test_memory_service_is_a_link_service() -> None:
    service: LinkService = MemoryService()
    assert service.ready() is None


def test_link_from_creation_to_deletion(http: httpx.Client) -> None:
    created = http.post("/v1/links", json=LINK)
    assert (created.status_code, created.headers["location"]) == (201, "/v1/links/a")
    assert created.json()["actions"][0]["action"] == "create link"
    assert [link["name"] for link in http.get("/v1/links").json()] == ["a"]
    assert http.get("/v1/links/a").json()["target_cluster_id"] == "target-id"
    changed = http.patch(
        "/v1/links/a", json={"properties": {"client.id": "x"}, "options": {"fetchers_per_node": 5}}
    )
    assert changed.status_code == 200
    described = http.get("/v1/links/a").json()
    assert described["options"]["fetchers_per_node"] == 5
    assert described["options"]["partition_fetch_bytes"] == 1 << 20  # what was not named stays
    assert described["properties"]["client.id"] == "x"
    assert http.delete("/v1/links/a").status_code == 200
    assert http.get("/v1/links").json() == []


def test_mirror_from_creation_to_promotion(http: httpx.Client) -> None:
    make_link(http, "orders", "payments")
    assert {m["topic"] for m in http.get("/v1/links/a/mirrors").json()} == {"orders", "payments"}
    assert len(http.get("/v1/links/a/mirrors/orders").json()["partition_status"]) == 3
    assert http.post("/v1/links/a/mirrors/payments:pause").status_code == 200
    assert http.get("/v1/links/a/mirrors/payments").json()["state"] == "PAUSED"
    assert len(http.get("/v1/links/a/lag", params={"topic": ["orders"]}).json()["partitions"]) == 3
    plan = http.post("/v1/links/a/mirrors:promote", params={"dry_run": True}, json={"all": True})
    assert (plan.status_code, plan.json()["dry_run"]) == (200, True)
    job = http.post("/v1/links/a/mirrors:promote", json={"topics": ["orders"]})
    assert (job.status_code, job.headers["location"]) == (202, "/v1/promotes/p1")
    phases = [http.get("/v1/promotes/p1").json()["phase"] for _ in range(6)]
    assert phases == ["FENCED", "ALIGNED", "VALIDATED", "HANDED_OVER", "PROMOTED", "PROMOTED"]
    assert (
        http.delete("/v1/links/a/mirrors/orders", params={"keep_data": True})
        .json()["actions"][0]["action"]
        .startswith("forget")
    )


def test_dry_run_changes_nothing(http: httpx.Client, api: Running) -> None:
    make_link(http, "orders")
    before = list(api.service.calls)
    dry = {"dry_run": "true"}
    answers = [
        http.post("/v1/links", params=dry, json={**LINK, "name": "b"}),
        http.patch("/v1/links/a", params=dry, json={"properties": {"client.id": "x"}}),
        http.post("/v1/links/a/mirrors", params=dry, json={"topics": ["payments"]}),
        http.post("/v1/links/a/mirrors/orders:pause", params=dry),
        http.delete("/v1/links/a/mirrors/orders", params=dry),
        http.post("/v1/links/a/mirrors:promote", params=dry, json={"all": True}),
    ]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    assert all(answer.json()["dry_run"] is True for answer in answers)
    assert api.service.calls == before


@pytest.mark.parametrize("query", ["dryrun=true", "dry-run=true", "dry_run=maybe"])
def test_a_misspelt_dry_run_is_refused(http: httpx.Client, api: Running, query: str) -> None:
    answer = http.post(f"/v1/links?{query}", json=LINK)
    assert answer.status_code == 400
    assert api.service.links == {}


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/v1/links/none", 40401),
        ("GET", "/v1/links/a/mirrors/none", 40402),
        ("GET", "/v1/promotes/none", 40403),
        ("POST", "/v1/sidecars/999:leave", 40404),
        ("POST", "/v1/sidecars/900:leave", 40902),
        ("DELETE", "/v1/links/a", 40902),
        ("POST", "/v1/links/a/mirrors/orders:resume", 40902),
        ("GET", "/v1/nothing", 40400),
        ("PUT", "/v1/links", 40500),
        ("GET", "/v1/links/with%20space", 40001),
        ("GET", "/v1/links/" + "x" * 129, 40001),
        ("GET", "/v1/links/a/mirrors/%00", 40001),
        ("POST", "/v1/sidecars/x:leave", 40001),
    ],
)
def test_errors_are_json_with_a_code(http: httpx.Client, method: str, path: str, code: int) -> None:
    make_link(http, "orders")
    answer = http.request(method, path)
    body = answer.json()
    assert answer.status_code == code // 100
    assert set(body) == {"error_code", "message"}
    assert body["error_code"] == code
    assert "\n" not in body["message"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "required"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, ""),
        (b"[]", "dict"),
        (b'{"name": "a"}', "properties"),
        (b'{"name": "a b", "properties": {"bootstrap.servers": "x:1"}}', "name"),
        (b'{"name": "a", "properties": {"bootstrap.servers": 7}}', "bootstrap.servers"),
        (b'{"name": "a", "properties": {}}', "bootstrap.servers is missing"),
        (b'{"name": "a", "properties": {"bootstrap.servers": "nowhere"}}', "host:port"),
        (
            b'{"name": "a", "properties": {"bootstrap.servers": "x:1", "sasl.mechanim": "PLAIN"}}',
            "sasl.mechanism?",
        ),
        (b'{"name": "a", "properties": {"bootstrap.servers": "x:1"}, "nmae": 1}', "unknown field nmae"),
        (
            b'{"name": "a", "properties": {"bootstrap.servers": "x:1"}, "options": {"fetchers_per_node": 0}}',
            "options",
        ),
        (
            b'{"name": "a", "properties": {"bootstrap.servers": "x:1", "sasl.password": "pw"}}',
            "sasl.password",
        ),
    ],
)
def test_bad_bodies_are_refused(http: httpx.Client, api: Running, body: bytes, expected: str) -> None:
    answer = http.post("/v1/links", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert expected in answer.json()["message"]
    assert api.service.links == {}


def test_a_secret_in_clear_is_not_repeated(http: httpx.Client) -> None:
    jaas = 'org.apache...PlainLoginModule required username="me" password="hunter2";'
    properties = {"bootstrap.servers": "x:1", "sasl.jaas.config": jaas}
    answer = http.post("/v1/links", json={"name": "a", "properties": properties})
    assert answer.status_code == 400
    assert "hunter2" not in answer.text
    by_reference = {**properties, "sasl.jaas.config": jaas.replace("hunter2", "${env:PW}")}
    assert http.post("/v1/links", json={"name": "a", "properties": by_reference}).status_code == 201
    assert "${env:PW}" in http.get("/v1/links/a").json()["properties"]["sasl.jaas.config"]


def test_a_form_of_a_web_page_is_refused(http: httpx.Client, api: Running) -> None:
    """Without a preflight request a page of another origin can only send text/plain and the like."""
    answer = http.post("/v1/links", content=json.dumps(LINK), headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    assert api.service.links == {}


@pytest.mark.parametrize(
    ("content_type", "code"),
    [
        (None, 415),
        ("text/plain; application/json", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=application/json", 415),
        ("Application/JSON; charset=utf-8", 201),
        ("application/merge-patch+json", 201),
    ],
)
async def test_a_body_is_json_whatever_the_framework_makes_of_it(content_type: str | None, code: int) -> None:
    """Older versions of it take a body without a type for JSON."""
    reached: list[Scope] = []

    async def framework(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    headers = {} if content_type is None else {"content-type": content_type}
    transport = httpx.ASGITransport(limits.GuardMiddleware(framework, token=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.post("/v1/links", content=json.dumps(LINK), headers=headers)
        assert (answer.status_code, len(reached)) == (code, code == 201)
        if code == 415:
            assert (answer.json()["error_code"], "application/json" in answer.text) == (41500, True)
        assert (await client.post("/v1/links/a/mirrors/orders:pause")).status_code == 201  # no body, no type


@pytest.mark.parametrize("body", [{}, {"topics": []}, {"topics": ["a"], "all": True}, {"topics": ["a", "a"]}])
def test_promote_wants_topics_or_all(http: httpx.Client, body: dict[str, object]) -> None:
    make_link(http, "orders")
    assert http.post("/v1/links/a/mirrors:promote", json=body).status_code == 400


@pytest.mark.parametrize("start", ["", "Earliest", "-1", "1.5", "9" * 19, "٣"])
def test_bad_start(http: httpx.Client, start: str) -> None:
    make_link(http)
    assert http.post("/v1/links/a/mirrors", json={"topics": ["orders"], "start": start}).status_code == 400


def test_errors_of_the_service(http: httpx.Client, api: Running) -> None:
    api.service.raises = PreflightFailed("segment.bytes of the target is 1000,\nthe largest batch is 2000")
    answer = http.get("/v1/status")
    assert (answer.status_code, answer.json()["error_code"]) == (422, 42201)
    assert answer.json()["message"] == "segment.bytes of the target is 1000, the largest batch is 2000"
    api.service.raises = ClusterTrouble("cluster source cannot be reached: one:9092 refused")
    assert http.get("/v1/status").json() == {
        "error_code": 50201,
        "message": "cluster source cannot be reached: one:9092 refused",
    }
    api.service.raises = ValueError("secret detail")
    answer = http.get("/v1/status")
    assert answer.status_code == 500
    assert "secret detail" not in answer.text
    api.service.raises = None
    assert http.get("/v1/status").status_code == 200


def test_a_call_that_hangs_is_given_up(
    http: httpx.Client, api: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "REQUEST_TIMEOUT", 0.1)
    api.service.hang = True
    assert http.get("/v1/status").json()["error_code"] == 50401


def test_too_large(http: httpx.Client) -> None:
    big = b"x" * (limits.MAX_BODY_BYTES + 1)
    assert http.post("/v1/links", content=big).json()["error_code"] == 41300
    # Chunked: no length is announced.
    chunked = http.post("/v1/links", content=iter([big[:-100], big[-100:]]))
    assert chunked.json()["error_code"] == 41300
    assert http.post("/v1/links", headers={"x-big": "y" * 100_000}).status_code in (400, 431)
    assert http.get("/healthz").status_code == 200


def _raw(api: Running) -> socket.socket:
    port = int(api.url.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def test_a_body_that_never_comes(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_TIMEOUT", 0.2)
    with _raw(api) as peer:
        peer.sendall(b"POST /v1/links HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in peer.recv(4096)


@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_headers_that_never_end(api: Running, monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    """As the first request and after one that was answered; half a header, then silence."""
    monkeypatch.setattr(server_module, "HEADER_TIMEOUT", 0.2)
    with _raw(api) as peer:
        peer.sendall(before + b"GET /healthz HTTP/1.1\r\nHost: lo")
        seen = b""
        while chunk := peer.recv(4096):
            seen += chunk
    assert seen.count(b" 200 ") == bool(before)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x00\x00\x12\x00\x12\x00\x03hello\r\n\r\n",
        b"GET / / HTTP/1.1 \r\n: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    ],
)
def test_garbage_closes_the_connection_only(api: Running, http: httpx.Client, garbage: bytes) -> None:
    with _raw(api) as peer:
        peer.sendall(garbage)
        seen = b""
        while chunk := peer.recv(4096):
            seen += chunk
        assert seen == b"" or b" 400 " in seen
    assert http.get("/healthz").status_code == 200


def test_byte_at_a_time(api: Running) -> None:
    with _raw(api) as peer:
        for byte in b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n":
            peer.sendall(bytes([byte]))
        seen = b""
        while chunk := peer.recv(4096):
            seen += chunk
    assert b" 200 " in seen


def test_dns_rebinding_is_refused(http: httpx.Client) -> None:
    assert http.get("/v1/status", headers={"host": "evil.example:8080"}).json()["error_code"] == 42100
    assert http.get("/v1/status", headers={"host": "127.0.0.1.evil.example"}).status_code == 421
    assert http.get("/v1/status", headers={"host": "[::1]:8080"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://localhost.evil.example:8080"},
        {"origin": "http://evil.example", "sec-fetch-site": "none"},
        {"origin": "null"},
        {"origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
        # Of browsers that do not say where a request comes from.
        {"origin": "http://localhost:3000"},
        {"origin": "http://[::1]:8080"},
        {"referer": "http://localhost:3000/page"},
        {"user-agent": "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"},
    ],
)
def test_a_web_page_of_another_site_is_refused(
    http: httpx.Client, api: Running, headers: dict[str, str]
) -> None:
    """What needs no body is sent by a browser without asking first, and with the right Host header."""
    make_link(http, "orders")
    before = list(api.service.calls)
    for path in ("/v1/links/a/mirrors/orders:pause", "/v1/sidecars/901:leave", "/v1/sidecars/901:drain"):
        answer = http.post(path, headers=headers)
        assert (answer.status_code, answer.json()["error_code"]) == (403, 40300)
        assert "web pages are refused" in answer.json()["message"]
    assert api.service.calls == before


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost:8080", "origin": "http://localhost:8080", "sec-fetch-site": "same-origin"},
        {"host": "[::1]:8080", "origin": "http://[::1]:8080"},
        {"host": "localhost", "origin": "HTTP://LOCALHOST"},
        {"sec-fetch-site": "none"},
    ],
)
def test_what_is_local_may_change_things(http: httpx.Client, headers: dict[str, str]) -> None:
    make_link(http, "orders")
    assert http.post("/v1/links/a/mirrors/orders:pause", headers=headers).status_code == 200


def test_with_a_token_the_page_does_not_matter(guarded: Running) -> None:
    """A console of one's own may have it; a page of somebody else has not."""
    headers = {"origin": "https://console.example", "sec-fetch-site": "cross-site"}
    with httpx.Client(base_url=guarded.url, trust_env=False) as http:
        assert http.get("/v1/status", headers=headers).status_code == 401
        allowed = {**headers, "authorization": "Bearer a-long-token"}
        assert http.get("/v1/status", headers=allowed).status_code == 200


def test_token(guarded: Running) -> None:
    with httpx.Client(base_url=guarded.url, trust_env=False) as http:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic a-long-token"}):
            for path in ("/v1/status", "/metrics", "/openapi.json", "/v1/nothing"):
                answer = http.get(path, headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert http.get("/healthz").status_code == 200
        assert http.get("/readyz").status_code == 200
        allowed = {"authorization": "bearer a-long-token", "host": "sidecar.example"}
        assert http.get("/v1/status", headers=allowed).status_code == 200


def test_probes_and_metrics(http: httpx.Client, api: Running) -> None:
    assert http.get("/readyz").json() == {"status": "ready", "reason": None}
    api.service.not_ready = "not unfenced yet"
    ready = http.get("/readyz")
    assert (ready.status_code, ready.json()["reason"]) == (503, "not unfenced yet")
    assert http.get("/healthz").status_code == 200
    page = http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    assert 'linker_build_info{version="9.9"} 1.0' in page.text


def test_openapi_names_every_operation(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    operations = [one for path in document["paths"].values() for one in path.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    assert "/v1/links/{link}/mirrors:promote" in document["paths"]


async def test_a_taken_port_is_one_clear_line() -> None:
    app = create_app(MemoryService(), Metrics(lambda: Snapshot(version="1")), version="1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = AdminServer(app, "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(AdminServerError, match=r"admin\.listen: cannot bind to 127\.0\.0\.1"):
            await server.start()
        await server.close()


async def test_close_cancels_what_hangs() -> None:
    service = MemoryService()
    service.hang = True
    app = create_app(service, Metrics(lambda: Snapshot(version="1")), version="1")
    server = AdminServer(app, "127.0.0.1", 0)
    await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
        request = asyncio.create_task(client.get("/v1/status"))
        await asyncio.sleep(0.2)
        started = time.monotonic()
        await server.close(grace=0.5)
        assert time.monotonic() - started < 5
        with pytest.raises(httpx.HTTPError):
            answer = await request
            answer.raise_for_status()
    with pytest.raises(AdminServerError):
        _ = server.port
