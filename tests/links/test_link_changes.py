"""Creating and changing links: what is checked before anything is connected to, and what an answer may say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from controller.stored_controller import StoredController
from linker.admin.api import create_app
from linker.groups.settings import GROUP_OPTIONS
from linker.metrics import Metrics
from linker.samples import Snapshot
from linker.service import SidecarService
from tests.controller.memory_store import MemoryStore

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


async def a_client(**links: dict[str, str]) -> httpx.AsyncClient:
    """Of the admin API of a sidecar with these links, as far as changing a link asks it."""
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    for name, properties in links.items():
        await controller.create_link(name, name, properties)
    sidecar: Any = SimpleNamespace(
        controller=controller,
        links={name: SimpleNamespace(link=controller.image.links[name]) for name in links},
        not_ready=lambda: None,
    )
    app = create_app(SidecarService(sidecar), Metrics(lambda: Snapshot(version="1")), version="1")
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


@pytest.mark.parametrize(
    "wrong",
    [
        {"security.protocol": "%s"},
        {"bootstrap.servers": "%s"},
        {"bootstrap.servers": "h:1,%s"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "%s"},
        {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "%s"},
        {"security.protocol": "SSL", "ssl.truststore.location": "%s"},
        {"security.protocol": "SSL", "ssl.keystore.location": "/x%s"},
    ],
)
@pytest.mark.parametrize("dry_run", ["true", "false"])
@pytest.mark.parametrize("of", ["env", "file"])
async def test_no_answer_holds_what_a_reference_stands_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wrong: dict[str, str],
    dry_run: str,
    of: str,
) -> None:
    """Whoever may ask for a change could read every variable and every file of the sidecar otherwise."""
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    monkeypatch.setenv("SECRET", "hunter2")
    reference = "${env:SECRET}" if of == "env" else f"${{file:{secret}}}"
    properties = {key: value.replace("%s", reference) for key, value in wrong.items()}
    async with await a_client(east=NOWHERE) as client:
        query = {"dry_run": dry_run}
        answers = [
            await client.patch("/v1/links/east", params=query, json={"properties": properties}),
            await client.post(
                "/v1/links", params=query, json={"name": "west", "properties": NOWHERE | properties}
            ),
        ]
    for answer in answers:
        assert answer.status_code in (400, 502)
        assert list(wrong)[-1] in answer.json()["message"]
        assert "hunter2" not in answer.text.lower()
    assert "hunter2" not in caplog.text.lower()


async def test_properties_are_checked_as_they_are_given() -> None:
    async with await a_client(east=NOWHERE) as client:
        for properties, told in (
            ({"security.protocol": "${env:NONE}"}, "security.protocol is ${env:NONE}; give one of PLAINTEXT"),
            ({"bootstrap.servers": "${env:NONE}"}, "bootstrap.servers: '${env:NONE}' is not host:port"),
            ({"sasl.pasword": "${env:NONE}"}, "unknown property sasl.pasword; did you mean sasl.password?"),
            ({"sasl.username": "${env:NONE}"}, "sasl.username: environment variable NONE is not set"),
        ):
            answer = await client.patch("/v1/links/east", json={"properties": properties})
            assert (answer.status_code, answer.json()["error_code"]) == (400, 40001)
            assert told in answer.json()["message"]


async def test_options_of_groups_need_no_source_and_interrupt_nothing() -> None:
    """The source may be dead, and its groups are to be let go."""
    async with await a_client(east=NOWHERE) as client:
        answer = await client.patch("/v1/links/east", json={"options": {"groups_include": ""}})
        assert (answer.status_code, answer.json()["actions"][0]["detail"]) == (200, "at once")
        every = {
            "groups_exclude": "x.*",
            "groups_sync_interval_ms": 500,
            "groups_promote": "auto",
            "groups_gate": "classic+transaction",
        }
        assert every.keys() | {"groups_include"} == GROUP_OPTIONS
        assert (await client.patch("/v1/links/east", json={"options": every})).status_code == 200
        refused = await client.patch("/v1/links/east", json={"options": {"groups_include": "("}})
        assert refused.status_code == 400
        # What the link has to begin anew for is another matter.
        answer = await client.patch(
            "/v1/links/east", json={"options": {"groups_include": "", "fetchers_per_node": 2}}
        )
        assert answer.status_code == 502
