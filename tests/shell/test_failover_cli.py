"""`linker mirror failover` end to end over HTTP."""

from __future__ import annotations

import json

import pytest

from admin.client import AdminClient
from tests.shell.conftest import Cli, Running
from tests.shell.test_cli import make


def test_refused_while_the_source_answers(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    plan = cli("mirror", "failover", "orders", "-l", "a", "--dry-run")
    assert plan.code == 1
    assert "blocked: the source still answers for orders-0" in plan.out
    refused = cli("mirror", "failover", "orders", "-l", "a", "--yes")
    assert refused.code == 1
    assert "the source still answers" in refused.err
    assert not api.service.jobs


def test_says_what_was_taken_over_and_what_not(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.source_dead = True
    plan = cli("mirror", "failover", "orders", "-l", "a", "--dry-run")
    assert plan.code == 0
    head, row, end = plan.out.splitlines()
    assert head.split()[:3] == ["TOPIC", "PARTITION", "STATE"]
    assert row.split()[:6] == ["orders", "0", "FAILED_OVER", "99", "103", "3"]
    assert "4000:2 from 95" in row
    assert end == "a failover could start now; nothing was changed (--dry-run)"
    done = cli("mirror", "failover", "orders", "-l", "a", "--yes", "-o", "json")
    assert done.code == 0
    assert json.loads(done.out)["failover"][0]["missing"] == 3
    assert api.service.calls[-1] == "failover orders"
    assert "LAST MIRRORED" in cli("mirror", "failover", "--attach", "p1").out


def test_ctrl_c_leaves_it_going_on_and_is_no_success(
    cli: Cli, api: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(cli, "orders")
    api.service.source_dead = True

    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AdminClient, "follow_promote", pressed)
    left = cli("mirror", "failover", "orders", "-l", "a", "--yes")
    assert left.code == 130
    assert "promote p1 goes on" in left.err.splitlines()[-1]


def test_wrong_use(cli: Cli) -> None:
    make(cli, "orders")
    for wrong in (("orders",), ("-l", "a"), ("orders", "--all", "-l", "a"), ("--attach", "p1", "--all")):
        assert cli("mirror", "failover", *wrong).code == 2
    asked = cli("mirror", "failover", "orders", "-l", "a", "--force")
    assert asked.code == 2, "nobody is there to answer the question"
    assert cli("mirror", "failover", "orders", "-l", "a", "--force", "--yes").code == 0
