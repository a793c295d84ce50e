"""`linker mirror switch` and `restore` end to end over HTTP."""

from __future__ import annotations

import pytest

from admin.models import MirrorState, RestoreState, SyncState
from tests.shell.conftest import Cli, Running
from tests.shell.test_cli import make


@pytest.fixture
def pressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the first wait."""

    def press(_: float) -> None:
        raise KeyboardInterrupt

    for module in ("switch", "restore"):
        monkeypatch.setattr(f"linker.cli.{module}.time.sleep", press)


def test_switches_once_all_are_in_sync(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    done = cli("mirror", "switch", "orders", "-l", "a")
    assert done.code == 0, done.err
    assert api.service.calls[-2:] == [
        "sync {'topics': ['orders']} dry_run=False",
        "promote orders max_lag=10000",
    ]


def test_all_waits_for_no_mirror_that_is_over(cli: Cli, api: Running) -> None:
    """It is never in sync."""
    make(cli, "orders", "payments")
    api.service.mirrors["a", "payments"] = MirrorState.PROMOTED
    done = cli("mirror", "switch", "--all", "-l", "a", "--sync-timeout-ms", "500")
    assert "not in sync" not in done.err
    assert any(call.startswith("promote") for call in api.service.calls)


def test_says_what_is_not_in_sync_in_time(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.synced_as = SyncState.FOLLOWING
    late = cli("mirror", "switch", "orders", "-l", "a", "--sync-timeout-ms", "300")
    assert late.code == 1
    assert "waiting until 1 topics are in sync (orders is FOLLOWING)" in late.err
    assert "linker mirror describe orders --link a says why" in late.err
    assert not api.service.jobs


@pytest.mark.usefixtures("pressed")
def test_ctrl_c_before_the_switch_is_no_success(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.synced_as = SyncState.FOLLOWING
    left = cli("mirror", "switch", "orders", "-l", "a")
    assert left.code == 130
    assert left.err.splitlines()[-1] == (
        "nothing is switched yet; the topics go on getting in sync, see linker mirror list --link a"
    )
    assert not api.service.jobs


@pytest.mark.usefixtures("pressed")
def test_ctrl_c_leaves_a_restore_going_on(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.source_dead = True
    api.service.restored = api.service.restored.model_copy(update={"state": RestoreState.RESTORING})
    left = cli("mirror", "restore", "orders", "-l", "a", "--yes")
    assert left.code == 130
    assert left.err.splitlines()[-1] == "the restore goes on; see linker mirror list --link a"
