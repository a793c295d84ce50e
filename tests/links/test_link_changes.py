"""Creating and changing links: what is checked before anything is connected to, and what an answer may say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from admin.api import create_app
from admin.metrics import Metrics
from admin.samples import Snapshot
from fleet.stored_controller import StoredController
from linker.config.link_secrets import LinkSecrets
from linker.links.group_options import GROUP_OPTIONS
from linker.service import SidecarService
from tests.controller.memory_store import MemoryStore

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


async def a_client(files: Path = Path("/nowhere"), **links: dict[str, str]) -> httpx.AsyncClient:
    """Of the admin API of a sidecar with these links, as far as changing a link asks it. `files`: sidecar.links.dir."""
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    for name, properties in links.items():
        await controller.create_link(name, name, properties)
    sidecar: Any = SimpleNamespace(
        controller=controller,
        links={name: SimpleNamespace(link=controller.image.links[name]) for name in links},
        not_ready=lambda: None,
        config=SimpleNamespace(link_secrets=LinkSecrets(files)),
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
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "%s"},
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
    monkeypatch.setenv("LINKER_LINK_SECRET", "hunter2")
    reference = "${env:LINKER_LINK_SECRET}" if of == "env" else f"${{file:{secret}}}"
    properties = {key: value.replace("%s", reference) for key, value in wrong.items()}
    async with await a_client(tmp_path, east=NOWHERE) as client:
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


@pytest.mark.parametrize(
    "wanted",
    [
        {"client.id": "${file:%s/../target}"},
        {"client.id": "${file:%s/east}"},
        {"client.rack": "${env:LINKER_LINK_EAST}"},
        {"client.id": "${env:HOME}"},
        {"sasl.username": "${file:%s/east}"},
        {"sasl.password": "${file:%s/../target}"},
        {"sasl.password": "${file:/proc/self/environ}"},
        {"sasl.password": "${file:%s/way-out}"},
        {"sasl.password": "${file:%s/directory-out/target}"},
        {"sasl.password": "${env:PATH}"},
        {"sasl.password": "x${env:PATH}"},
        {"sasl.jaas.config": 'x required username="${file:%s/east}" password="p";'},
        {"sasl.jaas.config": 'x required username="password=${file:%s/east}" password="${file:%s/east}";'},
        {"ssl.truststore.location": "%s/way-out"},
        {"ssl.truststore.location": "%s/../target"},
        {"ssl.keystore.location": "/etc/hostname"},
    ],
)
@pytest.mark.parametrize("dry_run", ["true", "false"])
@pytest.mark.parametrize("change", ["create", "update"])
async def test_no_caller_has_a_file_or_a_variable_sent_to_an_address_of_his_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str], dry_run: str, change: str
) -> None:
    """The attack: a link to a listener of the caller's own, and what the sidecar says there."""
    files = tmp_path / "links"
    files.mkdir()
    (files / "east").write_text("hunter2")
    (tmp_path / "target").write_text("hunter2")
    (files / "way-out").symlink_to(tmp_path / "target")
    (files / "directory-out").symlink_to(tmp_path)
    monkeypatch.setenv("LINKER_LINK_EAST", "hunter2")
    came: list[asyncio.StreamWriter] = []

    def note(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer)
        writer.close()

    listener = await asyncio.start_server(note, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    properties = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "${file:%s/east}",
    } | wanted
    properties = {key: value.replace("%s", str(files)) for key, value in properties.items()}
    async with await a_client(files, east=NOWHERE) as client, listener:
        query = {"dry_run": dry_run}
        if change == "create":
            body = {"name": "west", "properties": properties}
            answer = await client.post("/v1/links", params=query, json=body)
        else:
            answer = await client.patch("/v1/links/east", params=query, json={"properties": properties})
    assert (answer.status_code, answer.json()["error_code"]) == (400, 40001)
    assert next(iter(wanted)) in answer.json()["message"]
    assert "hunter2" not in answer.text
    assert not came


async def test_whether_a_file_is_there_is_not_told(tmp_path: Path) -> None:
    async with await a_client(tmp_path / "links", east=NOWHERE) as client:
        told = []
        for there in ("/etc/hostname", "/etc/not-there"):
            for key, value in (("ssl.truststore.location", there), ("sasl.password", f"${{file:{there}}}")):
                changes = {"security.protocol": "SSL", key: value}
                answer = await client.patch("/v1/links/east", json={"properties": changes})
                told.append(answer.json()["message"].replace(there, ""))
        assert told[:2] == told[2:]


async def test_a_secret_of_a_link_is_resolved_where_it_may_be(tmp_path: Path) -> None:
    """The right use: the request gets as far as the connection, which nobody takes."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "east").write_text("hunter2")
    (tmp_path / "east").symlink_to(tmp_path / "data" / "east")  # as Kubernetes mounts a secret
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'x required username="u" password="${{file:{tmp_path}/east}}";',
    }
    async with await a_client(tmp_path, east=NOWHERE) as client:
        answer = await client.patch("/v1/links/east", json={"properties": login})
        assert answer.status_code == 502, answer.text


async def test_properties_are_checked_as_they_are_given() -> None:
    async with await a_client(east=NOWHERE) as client:
        for properties, told in (
            ({"security.protocol": "${env:NONE}"}, "security.protocol is ${env:NONE}; give one of PLAINTEXT"),
            ({"bootstrap.servers": "${env:NONE}"}, "bootstrap.servers: '${env:NONE}' is not host:port"),
            ({"sasl.pasword": "${env:NONE}"}, "unknown property sasl.pasword; did you mean sasl.password?"),
            (
                {"sasl.username": "${env:NONE}"},
                "sasl.username is no secret, so no reference is resolved in it",
            ),
            (
                {"sasl.password": "${env:LINKER_LINK_NONE}"},
                "sasl.password: environment variable LINKER_LINK_NONE is not set",
            ),
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
