"""Any sidecar answers: a request that only the link controller can answer is passed on, once, and never lost silently."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx

from admin.api import create_app
from admin.forward import FORWARDED_BY, Forwarder
from admin.metrics import Metrics
from admin.models import GroupState
from admin.samples import Snapshot
from admin.server import AdminServer
from fleet.route import Destination, NoController
from fleet.shared_controller import NotTheController
from fleet.stores.base import Candidate, ControllerFenced, Seat, StoreError
from tests.shell.memory_service import MemoryService


class Sidecar:
    """One admin API of a fleet. `to`: where the link controller is, as it knows; None: it is itself."""

    def __init__(self, broker_id: int, token: str | None = None) -> None:
        self.service = MemoryService()
        self.to: Destination | NoController | None = None
        self.forwarder = Forwarder(broker_id, self._route)
        app = create_app(
            self.service,
            Metrics(lambda: Snapshot(version="9.9")),
            version="9.9",
            token=token,
            forwarder=self.forwarder,
        )
        self.server = AdminServer(app, "127.0.0.1", 0)

    def _route(self) -> Destination | None:
        if isinstance(self.to, NoController):
            raise self.to
        return self.to

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@asynccontextmanager
async def fleet(*sidecars: Sidecar) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the first one."""
    for one in sidecars:
        await one.server.start()
    try:
        async with httpx.AsyncClient(
            base_url=f"http://{sidecars[0].address}", trust_env=False, verify=False
        ) as http:
            yield http
    finally:
        for one in sidecars:
            await one.forwarder.close()
            await one.server.close(grace=0.1)


LINK = {"name": "a", "properties": {"bootstrap.servers": "one:9092"}}


def error(answer: httpx.Response, status: int, code: int) -> str:
    body = answer.json()
    assert (answer.status_code, body["error_code"]) == (status, code)
    message = str(body["message"])
    assert "\n" not in message
    return message


async def test_changes_and_readings_are_answered_by_the_link_controller() -> None:
    asked, head = Sidecar(901), Sidecar(900)
    async with fleet(asked, head) as http:
        asked.to = Destination(900, head.address)
        dry = await http.post("/v1/links?dry_run=true", json=LINK)
        assert (dry.status_code, dry.json()["dry_run"], head.service.links) == (200, True, {})
        made = await http.post("/v1/links", json=LINK)
        assert (made.status_code, made.headers["location"]) == (201, "/v1/links/a")
        assert (list(head.service.links), asked.service.links) == (["a"], {})
        assert [one["name"] for one in (await http.get("/v1/links")).json()] == ["a"]
        assert "link b does not exist" in error(await http.get("/v1/links/b"), 404, 40401)
        error(await http.post("/v1/links", json={"name": "x"}), 400, 40001)


async def test_a_group_of_any_id_is_asked_for_through_another_sidecar() -> None:
    asked, head = Sidecar(901), Sidecar(900)
    async with fleet(asked, head) as http:
        asked.to = Destination(900, head.address)
        await http.post("/v1/links", json=LINK)
        for group in ("a\nb", "a\n", "a/../b", "%2F", " gr\u00fcn "):
            head.service.groups = {("a", group): GroupState.GATED}
            answer = await http.get(f"/v1/links/a/groups/{quote(group, safe='')}")
            assert answer.json().get("group") == group, answer.text


async def test_what_is_a_process_own_stays_there() -> None:
    asked, head = Sidecar(901), Sidecar(900)
    async with fleet(asked, head) as http:
        asked.to = Destination(900, head.address)
        asked.service.not_ready = "this very one is starting"
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).json()["reason"] == "this very one is starting"
        assert b"linker_build_info" in (await http.get("/metrics")).content


async def test_nobody_to_pass_it_on_to() -> None:
    asked = Sidecar(901)
    async with fleet(asked) as http:
        asked.to = NoController("no sidecar is the link controller at the moment; try again in a few seconds")
        answer = await http.get("/v1/links")
        assert "sidecar 901 cannot answer this: no sidecar is the link controller" in error(
            answer, 503, 50302
        )
        assert int(answer.headers["retry-after"]) > 0


async def test_a_request_is_passed_on_only_once() -> None:
    one, two = Sidecar(901), Sidecar(900)
    async with fleet(one, two) as http:
        one.to, two.to = Destination(900, two.address), Destination(901, one.address)
        async with asyncio.timeout(30):
            message = error(await http.get("/v1/links"), 503, 50302)
        assert message.startswith(
            "sidecar 901 took sidecar 900 for the link controller, which is sidecar 901"
        )
        assert (await http.get("/v1/links", headers=[(FORWARDED_BY.encode(), b"x\xe9")])).status_code == 503


def kept(address: str) -> socket.socket:
    """A port at which nobody answers: no other test's server gets it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    host, _, port = address.rpartition(":")
    held.bind((host, int(port)))
    return held


async def test_a_link_controller_that_does_not_answer() -> None:
    asked, head = Sidecar(901), Sidecar(900)
    async with fleet(asked, head) as http:
        asked.to = Destination(900, head.address)
        await head.server.close(grace=0.1)
        with kept(asked.to.address):
            answer = await http.post("/v1/links", json=LINK)
        message = error(answer, 503, 50303)
        assert (
            f"sidecar 900, the link controller, does not answer sidecar 901 at {asked.to.address}" in message
        )
        assert "may have been done" not in message, "it never arrived"
        assert "retry-after" in answer.headers


async def test_one_that_hangs_up_in_the_middle_may_have_done_it() -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _reader.readuntil(b"\r\n\r\n")
        writer.close()

    asked = Sidecar(901)
    listening = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with listening, fleet(asked) as http:
        asked.to = Destination(900, f"127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        assert "may have been done" in error(await http.post("/v1/links", json=LINK), 503, 50303)
        assert "may have been done" not in error(await http.get("/v1/links"), 503, 50303)


async def test_tokens() -> None:
    asked, head = Sidecar(901, "a-long-token"), Sidecar(900, "a-long-token")
    other = Sidecar(902, "another-token")
    async with fleet(asked, head, other) as http:
        asked.to = Destination(900, head.address)
        mine = {"authorization": "Bearer a-long-token"}
        error(await http.get("/v1/links"), 401, 40100)
        assert (await http.get("/v1/links", headers=mine)).json() == []
        asked.to = Destination(902, other.address)
        message = error(await http.get("/v1/links", headers=mine), 503, 50303)
        assert "sidecar 902, the link controller, refuses the token" in message


async def test_a_change_that_nobody_takes_is_one_line() -> None:
    head = Sidecar(900)
    seat = Seat(holder=Candidate(broker_id=901, admin="h:1"), epoch=4)
    async with fleet(head) as http:
        for failed, text in (
            (NotTheController(seat), "sidecar 901 is the link controller (admin API h:1)"),
            (NotTheController(None), "no sidecar is the link controller at the moment"),
            (ControllerFenced(3, 4), "another sidecar has become the link controller"),
            (StoreError("the target does not answer"), "the state store did not take the change"),
        ):
            head.service.raises = failed
            answer = await http.post("/v1/links", json=LINK)
            assert text in error(answer, 503, 50302)
            assert "retry-after" in answer.headers
