"""Draining, leaving and looking at a fleet on the command line."""

from __future__ import annotations

import json
import threading
import time

import yaml

from admin.models import FleetStatus
from admin.service import NoLinkController
from tests.shell.conftest import Cli, Running


def test_drain_waits_until_nothing_is_led(cli: Cli, api: Running) -> None:
    result = cli("sidecar", "drain", "901")
    assert (result.code, api.service.calls) == (0, ["drain sidecar 901"])
    lines = result.err.splitlines()
    assert lines == [f"sidecar 901 leads {left} partitions" for left in (3, 2, 1)]
    assert result.out.startswith("sidecar 901 leads nothing; it stays drained")
    assert cli("sidecar", "drain", "901", "--undo").out == "end draining sidecar 901\n"
    assert not api.service.draining


def test_drain_says_what_cannot_move(cli: Cli, api: Running) -> None:
    api.service.stuck_reason = "no other sidecar is in its ISR"
    begun = time.monotonic()
    result = cli("sidecar", "drain", "901", "--timeout", "0.6")
    assert time.monotonic() - begun < 5
    assert result.code == 1
    lines = result.err.splitlines()
    assert lines[0] == "sidecar 901 leads 3 partitions (orders-0: no other sidecar is in its ISR)"
    assert lines[-1].startswith(
        "linker: sidecar 901 is not drained within 0.6 s and still drains: orders-0 (no other"
    )
    assert len(lines) == 2, "the same is not said again and again"


def test_drain_that_somebody_undid(cli: Cli, api: Running) -> None:
    api.service.stuck_reason = "stuck"

    def undo() -> None:
        while api.service.looked < 2:
            time.sleep(0.02)
        api.service.draining = False
        api.service.leaving = False

    # 901 that neither drains nor leaves is unknown to the service: somebody removed it.
    thread = threading.Thread(target=undo)
    thread.start()
    result = cli("sidecar", "drain", "901", "--timeout", "20")
    thread.join()
    assert result.code == 1
    assert "no longer drains" in result.err


def test_a_plan_changes_nothing(cli: Cli, api: Running) -> None:
    for command in (("drain", "901"), ("leave", "901"), ("leave", "901", "--dead")):
        result = cli("sidecar", *command, "--dry-run")
        assert (result.code, result.err) == (0, "")
        assert "nothing was changed (--dry-run)" in result.out
    assert (api.service.calls, api.service.draining, api.service.leaving) == ([], False, False)


def test_leave_waits_until_nobody_knows_it(cli: Cli, api: Running) -> None:
    result = cli("sidecar", "leave", "901", "--dead")
    assert (result.code, api.service.calls) == (0, ["forget dead sidecar 901"])
    assert "sidecar 901: 3 partitions still need it" in result.err
    assert result.out == "forget dead sidecar 901\n"


def test_leave_that_does_not_end(cli: Cli, api: Running) -> None:
    api.service.stuck_reason = "nobody else is in its ISR: it would be lost"
    result = cli("sidecar", "leave", "901", "--timeout", "0.5")
    assert result.code == 1
    assert "has not left within 0.5 s and still leaves: orders-0 (nobody else is in its ISR" in result.err
    assert cli("sidecar", "leave", "901", "--timeout", "0").code == 2


def test_a_sidecar_alone_leaves_at_once(cli: Cli, api: Running) -> None:
    assert cli("sidecar", "leave", "900").out == "unregister sidecar 900\n"
    assert api.service.looked == 0


def test_a_new_link_controller_is_waited_for(cli: Cli, api: Running) -> None:
    def away_for_a_moment() -> None:
        while api.service.looked < 1:
            time.sleep(0.02)
        api.service.raises = NoLinkController("nobody is the link controller")
        time.sleep(0.8)
        api.service.raises = None

    thread = threading.Thread(target=away_for_a_moment)
    thread.start()
    result = cli("sidecar", "drain", "901", "--timeout", "20")
    thread.join()
    assert result.code == 0
    assert "nobody is the link controller; asked again" in result.err


def test_unknown_sidecars_and_wrong_use(cli: Cli) -> None:
    for command in ("drain", "leave"):
        result = cli("sidecar", command, "999")
        assert (result.code, result.err) == (1, "linker: sidecar 999 does not exist\n")
        assert cli("sidecar", command, "-1").code == 2
        assert cli("sidecar", command).code == 2
        assert cli("sidecar", command, str(2**31)).code == 2


def test_the_link_controller(cli: Cli) -> None:
    out = cli("controller", "describe").out
    for text in (
        "sidecar 900",
        "2 of 3 alive",
        "abcdef01",
        "fence of 3 partitions of link old: sidecars 902",
        "leader 900 -> 901 (draining)",
        "AWAY, WITH A LEASE",
        "4200 ms",
        "orders-1: the target's controller answered 80",
    ):
        assert text in out
    assert json.loads(cli("controller", "describe", "-o", "json").out)["controller_epoch"] == 4
    assert yaml.safe_load(cli("controller", "describe", "-o", "yaml").out)["waiting"][0]["sidecars"] == [902]


def test_the_fleet_in_the_status(cli: Cli, api: Running) -> None:
    assert "fleet:" not in cli("status").out
    api.service.fleet = FleetStatus(
        sidecars_alive=2,
        sidecars=3,
        controller=900,
        controller_epoch=4,
        moving_partitions=1,
        away=[902],
        draining=[901],
    )
    out = cli("status").out
    assert (
        "2 of 3 sidecars alive, controller 900 (epoch 4), away: 902, draining: 901, 1 partitions moving"
        in out
    )
