"""Every row of the table of operations is served, called, on the command line and in the reference; and nothing else is."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer

from admin import service as errors
from admin.client import AdminClient, AdminError
from admin.models import (
    ApplyAccessRequest,
    CreateLinkRequest,
    CreateMirrorsRequest,
    DemoteGroupsRequest,
    FailoverRequest,
    FinishRequest,
    PromoteGroupsRequest,
    PromoteRequest,
    ReassignRequest,
    RestoreRequest,
    SyncRequest,
    UpdateLinkRequest,
)
from admin.operation import AdminOperation, operation
from admin.operations import all_operations
from admin.routes import ROUTES, OperationRoute
from admin.validation_models import ContinuousValidationRequest, StartValidationRequest
from linker.cli.app import app
from linker.service import SidecarService
from tests.shell.conftest import Running
from tests.shell.memory_service import MemoryService

ROOT = Path(__file__).parents[2]
TABLE: dict[str, AdminOperation[..., Any]] = {one.name: one for one in all_operations()}

#: A body that each model takes.
BODIES: dict[Any, Any] = {
    CreateLinkRequest: CreateLinkRequest(name="a", properties={"bootstrap.servers": "one:9092"}),
    UpdateLinkRequest: UpdateLinkRequest(properties={"client.id": "x"}),
    CreateMirrorsRequest: CreateMirrorsRequest(topics=["payments"]),
    PromoteRequest: PromoteRequest(all=True),
    FailoverRequest: FailoverRequest(all=True),
    ReassignRequest: ReassignRequest(all=True, away_from=[2]),
    RestoreRequest: RestoreRequest(topics=["orders"]),
    FinishRequest: FinishRequest(topics=["orders"]),
    SyncRequest: SyncRequest(topics=["orders"]),
    PromoteGroupsRequest: PromoteGroupsRequest(all=True),
    DemoteGroupsRequest: DemoteGroupsRequest(all=True),
    ApplyAccessRequest: ApplyAccessRequest(),
    StartValidationRequest: StartValidationRequest(all=True),
    ContinuousValidationRequest: ContinuousValidationRequest(enabled=True),
}


def carry_out(client: AdminClient, row: AdminOperation[..., Any], names: dict[str, Any]) -> Any:
    body = {} if row.body is None else {"request": BODIES[row.body]}
    return getattr(client, row.name)(**names, **body)


@cache
def cli_calls() -> set[str]:
    """Methods that the command line calls on a client."""
    called = set()
    for path in (ROOT / "linker" / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
                owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                if owner in ("client", "_client"):
                    called.add(node.attr)
    return called


def command_exists(tree: Any, words: str) -> bool:
    for word in words.split():
        tree = getattr(tree, "commands", {}).get(word)
    return hasattr(tree, "params")


def complaints(
    table: dict[str, AdminOperation[..., Any]], routes: list[OperationRoute], called: set[str], reference: str
) -> list[str]:
    served = {route.name: route for route in routes}
    tree = typer.main.get_command(app)
    said = [f"no row for the route {name}" for name in served.keys() - table.keys()]
    for name, row in table.items():
        if not row.planning and name not in served:
            said.append(f"{name}: no route")
        if not hasattr(SidecarService, name):
            said.append(f"{name}: no service method")
        if not callable(getattr(AdminClient, name, None)) and name not in vars(
            AdminClient.__base__ or object
        ):
            said.append(f"{name}: no client call")
        if name not in called:
            said.append(f"{name}: no command calls it")
        if row.command is None and not row.without_command:
            said.append(f"{name}: neither a command nor a reason why there is none")
        if row.command is not None and not command_exists(tree, row.command):
            said.append(f"{name}: no command {row.command}")
        if f"| `{name}` |" not in reference:
            said.append(f"{name}: not in the reference")
        if not row.sentence.endswith("."):
            said.append(f"{name}: no sentence")
    return said


def reference() -> str:
    return (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")


def test_every_row_is_served_called_and_in_the_reference() -> None:
    assert len(TABLE) > 30
    assert complaints(TABLE, ROUTES, cli_calls(), reference()) == []


def test_a_row_that_is_nowhere_else_is_complained_of() -> None:
    @operation("POST", "/links/{link}:forget", "link forget")
    def forget_link(self: Any, link: str) -> None:
        pass

    said = complaints({**TABLE, "forget_link": forget_link}, ROUTES, cli_calls(), reference())
    assert said == [
        f"forget_link: {what}"
        for what in (
            "no route",
            "no service method",
            "no client call",
            "no command calls it",
            "no command link forget",
            "not in the reference",
            "no sentence",
        )
    ]
    without = {name: row for name, row in TABLE.items() if name != "lag"}
    assert complaints(without, ROUTES, cli_calls(), reference()) == ["no row for the route lag"]


@pytest.mark.parametrize("implementation", [SidecarService, MemoryService])
@pytest.mark.parametrize("name", TABLE)
def test_a_service_method_has_the_signature_of_its_row(implementation: type, name: str) -> None:
    method = getattr(implementation, name)
    assert inspect.iscoroutinefunction(method)
    types = get_type_hints(method)
    row = TABLE[name]
    parameters = list(inspect.signature(method).parameters.values())[1:]
    assert {one.name: one.kind for one in parameters} == {
        one.name: one.kind for one in row.signature.parameters.values()
    }
    assert types["return"] == row.answer
    assert types.get("request") == row.body


def test_names_in_paths_are_parameters_and_have_their_error() -> None:
    for row in TABLE.values():
        assert set(row.in_path) <= set(row.signature.parameters), row.name
        assert all(issubclass(getattr(errors, name), errors.ServiceError) for name in row.not_found)
        assert re.fullmatch(r"(/[a-z{}:_]+)+", row.path)


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.in_path])
def test_a_name_that_there_is_not_gets_the_error_of_its_row(api: Running, name: str) -> None:
    row = TABLE[name]
    names = {one: 7 if one == "sidecar_id" else "nowhere" for one in row.in_path}
    with AdminClient(api.url) as client, pytest.raises(AdminError) as refused:
        carry_out(client, row, names)
    assert refused.value.error_code in [getattr(errors, one).error_code for one in row.not_found]
