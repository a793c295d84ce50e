"""What a person sees while a promote runs, and on a screen that is kept: counters that move, and no line twice."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from admin.models import PromoteJobStatus, PromotePhase, PromoteTopic
from admin.validation_models import PromoteValidation, ValidationProgress, ValidationState
from linker.cli import watch
from linker.cli.promote_progress import promote_lines
from linker.links.proved import waiting_for
from linker.validation.runs import RunStatus
from tests.shell.memory_service import MemoryService
from validator import messages as m
from validator.mode import Mode


def job(
    waiting: str | None = None, read: int | None = None, reason: str | None = None, **more: Any
) -> PromoteJobStatus:
    progress = None
    if read is not None:
        progress = ValidationProgress(
            tasks_done=1, tasks=9, partitions_done=0, partitions=3, bytes=read, batches=read // 100
        )
    phase = more.get("phase", PromotePhase.CATCHING_UP)
    return PromoteJobStatus(
        id="east-1",
        link="east",
        phase=phase,
        reason=reason,
        topics=[PromoteTopic(topic="orders", partitions=3, phase=phase, lag=0)],
        started_at=datetime.now(UTC),
        validation=PromoteValidation(policy="require", progress=progress, waiting_for=waiting),
    )


def told(capsys: pytest.CaptureFixture[str], *seen: tuple[float, PromoteJobStatus]) -> list[str]:
    now = [0.0]
    lines = promote_lines(lambda: now[0])
    for at, one in seen:
        now[0] = at
        lines.show(one)
    return capsys.readouterr().err.splitlines()


def test_a_promote_says_that_spark_starts_then_counts_what_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    why = "orders-{}: nothing of broker 1's replica is validated yet"
    lines = told(
        capsys,
        (0.1, job(reason=why.format(0))),
        (0.3, job(reason=why.format(1))),
        (0.6, job(reason=why.format(2))),
        (1.0, job("Spark starts", reason=why.format(0))),
        (2.0, job("Spark starts", reason=why.format(1))),
        (15.0, job(None, 1_000_000, reason=why.format(0))),
        (16.0, job(None, 2_000_000, reason=why.format(0))),
        (21.0, job(None, 5_000_000, reason=why.format(0))),
        (22.0, job(phase=PromotePhase.FENCED)),
    )
    assert all(line.startswith("promote east-1: ") for line in lines)
    assert [line.rpartition("; after ")[2] for line in lines] == [
        "100 ms",
        "1.0 s",
        "15.0 s",
        "21.0 s",
        "22.0 s",
    ]
    assert "Spark starts (usually 10 to 30 s)" in lines[1]
    assert "validated yet" not in lines[1], "what is done about it is said instead"
    assert "0 of 3 partitions, 1 of 9 tasks, 4.8 MiB" in lines[3]


def test_a_long_start_is_not_silence(capsys: pytest.CaptureFixture[str]) -> None:
    reasons = [(float(at), job(None, None, reason=f"orders-{at}: not yet")) for at in range(12)]
    assert len(told(capsys, *reasons)) == 3, "one at once, then one every five seconds"


def test_why_a_run_tells_nothing_yet() -> None:
    run = RunStatus("1", "promote", Mode.BATCHES, ("orders",))
    assert waiting_for(run, "starting") == "Spark starts"
    assert waiting_for(run, "off") == "another validation comes first"
    run.state = ValidationState.RUNNING
    assert waiting_for(run, "off") == "Spark starts"
    assert waiting_for(run, "ready") == "Spark takes up the work"
    run.progress = m.Progress(
        id="1", tasks_done=0, tasks=1, partitions_done=0, partitions=1, bytes=0, batches=0
    )
    assert waiting_for(run, "ready") is None
    run.progress = None
    run.end(ValidationState.FAILED)
    assert waiting_for(run, "ready") is None
    assert waiting_for(None, "starting") is None


@pytest.mark.parametrize("width", [80, 100, 180])
async def test_the_kept_screen_has_forwarding_and_says_when_the_sidecar_is_gone(width: int) -> None:
    service = MemoryService()
    await make(service)
    now = await service.status()
    [link] = now.links
    named = [one.model_copy(update={"topic": "o" * 249}) for one in link.mirror_list]
    now = now.model_copy(update={"links": [link.model_copy(update={"mirror_list": named})]})
    text = drawn(watch.render(now, None), width)
    assert "FORWARDING"[:4] in text
    gone = drawn(watch.render(now.model_copy(update={"links": []}), now, "cannot reach the admin API"), width)
    assert "cannot reach" in gone
    assert "no links yet" not in gone, "nothing is known of links then"
    assert "no links yet" in drawn(watch.render(now.model_copy(update={"links": []}), now), width)


def drawn(what: Any, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(what)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    return str(text)


async def make(service: MemoryService) -> None:
    from admin.models import CreateLinkRequest, CreateMirrorsRequest

    await service.create_link(
        CreateLinkRequest(name="east", properties={"bootstrap.servers": "one:9092"}), dry_run=False
    )
    await service.create_mirrors("east", CreateMirrorsRequest(topics=["orders"]), dry_run=False)
