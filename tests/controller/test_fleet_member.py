"""A member: what it believes of whom, in what order, and what becomes of its lease."""

from __future__ import annotations

import asyncio
import random

import pytest

from controller.errors import NotFound, NotTheLeader
from controller.errors import Refused as RefusedChange
from fleet import messages as m
from fleet.channel import ChannelClosed
from fleet.member import JoinRefused, StaleController
from fleet.progress import CopyReport, FollowerReport, decode_copies
from tests.controller.fleet_kit import LINK, SETTINGS, TP, Ports, Sidecar, command, now
from tests.controller.fleet_kit import welcome as welcome_message
from tests.controller.virtual_loop import run_virtual
from wire.errors import LinkerError


def delta(seq: int, epoch: int = 1, **fields: object) -> m.Delta:
    return m.Delta.model_validate({"controller_epoch": epoch, "seq": seq} | fields)


async def renewed(sidecar: Sidecar, epoch: int = 1) -> None:
    renewal = await sidecar.hear(m.Renew)
    sidecar.say(m.Renewed(n=renewal.n, controller_epoch=epoch))
    await asyncio.sleep(0.001)


def test_the_first_renewal_follows_the_image_and_its_fences() -> None:
    async def main() -> None:
        sidecar = Sidecar()
        order: list[str] = []
        sidecar.shared.listeners.add(lambda records: order.append("image"))
        sidecar.connect()
        await sidecar.hear(m.Hello)
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            await sidecar.hear(m.Renew, timeout=0.1)  # not before the welcome
        sidecar.say(welcome_message(1))
        await sidecar.hear(m.Renew)
        assert order == ["image"]
        assert not sidecar.member.lease.valid(now())
        assert sidecar.shared.ask is not None

    run_virtual(main())


def test_the_lease_runs_from_when_the_renewal_was_sent() -> None:
    async def main() -> None:
        sidecar = Sidecar()
        await sidecar.welcomed(lease=10.0)
        renewal = await sidecar.hear(m.Renew)
        sent = now()
        await asyncio.sleep(0.3)
        sidecar.say(m.Renewed(n=renewal.n, controller_epoch=1))
        await asyncio.sleep(0.001)
        assert sidecar.member.lease.until == sent + 10
        # Doubled, or of a number never used: nothing.
        for n in (renewal.n, 999):
            sidecar.say(m.Renewed(n=n, controller_epoch=1))
        await asyncio.sleep(0.001)
        assert sidecar.member.lease.until == sent + 10
        assert sidecar.ports.done.count("renewed") == 1

    run_virtual(main())


def test_the_lease_outlives_the_session_and_old_numbers_do_not() -> None:
    async def main() -> None:
        sidecar = Sidecar()
        await sidecar.welcomed()
        await renewed(sidecar)
        late = await sidecar.hear(m.Renew)
        until, term = sidecar.member.lease.until, sidecar.member.lease.term
        sidecar.head.close("reset")
        assert isinstance(await sidecar.ended(), ChannelClosed)
        assert sidecar.member.lease.valid(now())
        assert sidecar.shared.ask is None
        await sidecar.welcomed()
        sidecar.say(m.Renewed(n=late.n, controller_epoch=1))
        await asyncio.sleep(0.001)
        assert (sidecar.member.lease.until, sidecar.member.lease.term) == (until, term)
        await renewed(sidecar)
        assert sidecar.member.lease.until > until
        assert sidecar.member.lease.term == term  # no gap

    run_virtual(main())


@pytest.mark.parametrize("kind", ["welcome", "renewed", "delta", "command"])
def test_a_stale_head_is_left_at_once(kind: str) -> None:
    async def main() -> None:
        sidecar = Sidecar()
        await sidecar.welcomed(epoch=5)
        await renewed(sidecar, 5)
        sidecar.head.close()
        await sidecar.ended()
        lease = sidecar.member.lease.until
        await sidecar.welcomed(epoch=4 if kind == "welcome" else 5)
        if kind != "welcome":
            renewal = await sidecar.hear(m.Renew)
            stale = {
                "renewed": m.Renewed(n=renewal.n, controller_epoch=4),
                "delta": delta(1, epoch=4),
                "command": command("unfence", epoch=4),
            }[kind]
            sidecar.say(stale)
        assert isinstance(await sidecar.ended(), StaleController)
        assert sidecar.member.lease.until == lease
        assert "unfence" not in sidecar.ports.done
        assert sidecar.shared.controller_epoch == 5

    run_virtual(main())


def test_the_highest_epoch_is_told_to_the_next_head() -> None:
    async def main() -> None:
        sidecar = Sidecar()
        await sidecar.welcomed(epoch=5)
        await asyncio.sleep(0.01)
        sidecar.head.close()
        await sidecar.ended()
        sidecar.connect()
        assert (await sidecar.hear(m.Hello)).highest_epoch == 5

    run_virtual(main())


@pytest.mark.parametrize("seq", [0, 2, 7])
def test_a_gap_between_deltas_ends_the_session(seq: int) -> None:
    async def main() -> None:
        sidecar = Sidecar()
        await sidecar.welcomed()
        sidecar.say(delta(seq))
        assert isinstance(await sidecar.ended(), m.BadMessage)

    run_virtual(main())


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ({"type": "refusal", "reason": "not now"}, JoinRefused),
        ({"type": "renewed", "n": 1, "controller_epoch": 1}, m.BadMessage),
        ({"type": "nonsense"}, m.BadMessage),
        (None, ChannelClosed),
    ],
)
def test_other_answers_to_hello(raw: dict[str, object] | None, kind: type[Exception]) -> None:
    async def main() -> None:
        sidecar = Sidecar()
        sidecar.connect()
        await sidecar.hear(m.Hello)
        begun = now()
        if raw is not None:
            sidecar.head.send(raw)  # type: ignore[arg-type]
        assert isinstance(await sidecar.ended(), kind)
        assert (now() - begun) == (0 if raw is not None else pytest.approx(SETTINGS.hello_timeout))
        with pytest.raises(ChannelClosed):
            sidecar.head.send({})

    run_virtual(main())


@pytest.mark.parametrize("raw", [{"type": "welcome"}, {"type": "refusal", "reason": ""}, {"type": "x"}])
def test_nonsense_in_the_middle_ends_the_session(raw: dict[str, object]) -> None:
    async def main() -> None:
        sidecar = Sidecar()
        await sidecar.welcomed()
        sidecar.head.send(raw)  # type: ignore[arg-type]
        assert isinstance(await sidecar.ended(), m.BadMessage)

    run_virtual(main())


def test_commands_are_carried_out_and_answered_each_with_its_outcome() -> None:
    async def main() -> None:
        sidecar = Sidecar()
        await sidecar.welcomed()
        sidecar.ports.drain = 0.2
        for n, what in enumerate(
            ["fence", "unfence", "hold", "release", "handed_over", "answered", "progress", "stop_following"]
        ):
            sidecar.say(command(what, n))
        answers = {x.command: x for x in [await sidecar.hear(m.Done) for _ in range(8)]}
        assert all(x.error is None for x in answers.values())
        assert answers[6].data == []
        assert answers[7].ends == [("t", 0, 42)]
        assert [x for x in sidecar.ports.done if x != "renewed"] == [
            "fence",
            "unfence",
            "fence",
            "release",
            "handed_over",
            "answered",
            "stop_following",
            "drained",
            "drained",
        ]
        for failing in (LinkerError("3 in flight"), TimeoutError()):
            sidecar.ports.failing = failing
            sidecar.say(command("fence", 9))
            done = await sidecar.hear(m.Done)
            assert done.command == 9
            assert done.error

    run_virtual(main())


def test_what_came_at_once_takes_effect_in_its_order() -> None:
    """An old unfence, the state that fences again, its fence and a renewal in one packet: nothing may be open for a
    moment while the lease is held, for the head may not have waited for this sidecar."""

    async def main() -> None:
        sidecar = Sidecar()
        await sidecar.welcomed()
        renewal = await sidecar.hear(m.Renew)
        order = sidecar.ports.done
        sidecar.shared.listeners.add(lambda records: order.append("delta"))
        sidecar.say(command("unfence", 1))
        sidecar.say(delta(1, reset=True))
        sidecar.say(command("fence", 2))
        sidecar.say(m.Renewed(n=renewal.n, controller_epoch=1))
        await asyncio.sleep(0.01)
        assert order == ["unfence", "delta", "fence", "renewed", "drained"]

    run_virtual(main())


# Questions.


async def ask(sidecar: Sidecar) -> None:
    await sidecar.shared.fail_partition(LINK, TP, "why")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (("NotFound", "a"), NotFound),
        (("Refused", "b"), RefusedChange),
        (("NotTheLeader", "c"), NotTheLeader),
        (("Odd", "d"), LinkerError),
    ],
)
def test_what_the_head_says_is_what_the_asker_hears(error: tuple[str, str], kind: type[Exception]) -> None:
    async def main() -> None:
        sidecar = Sidecar()
        await sidecar.welcomed()
        await sidecar.hear(m.Renew)
        asking = asyncio.create_task(ask(sidecar))
        question = await sidecar.hear(m.Ask)
        sidecar.say(m.Answer(n=question.n + 100))  # somebody else's
        sidecar.say(m.Answer(n=question.n, error=error))
        with pytest.raises(kind, match=error[1]):
            await asking
        sidecar.say(m.Answer(n=question.n))  # doubled
        await asyncio.sleep(0.001)
        assert not sidecar.session.done()

    run_virtual(main())


def test_a_question_ends_with_its_channel_or_its_time() -> None:
    async def main() -> None:
        sidecar = Sidecar()
        with pytest.raises(LinkerError):
            await ask(sidecar)
        await sidecar.welcomed()
        await sidecar.hear(m.Renew)
        begun = now()
        with pytest.raises(ChannelClosed, match="has not answered"):
            await ask(sidecar)
        assert now() - begun == pytest.approx(SETTINGS.ask_timeout)
        asking = asyncio.create_task(ask(sidecar))
        await asyncio.sleep(0.01)
        sidecar.head.close()
        with pytest.raises(ChannelClosed, match="went away"):
            await asking

    run_virtual(main())


# Leaving.


def test_who_leaves_acknowledges_nothing_whatever_is_on_its_way() -> None:
    async def main() -> None:
        sidecar = Sidecar()
        await sidecar.welcomed()
        await renewed(sidecar)
        renewal = await sidecar.hear(m.Renew)
        sidecar.member.leave()
        assert not sidecar.member.lease.valid(now())
        await sidecar.hear(m.Bye)
        sidecar.say(m.Renewed(n=renewal.n, controller_epoch=1))
        await asyncio.sleep(0.001)
        assert not sidecar.member.lease.valid(now())

    run_virtual(main())


def test_leaving_without_a_head() -> None:
    async def main() -> None:
        sidecar = Sidecar()
        sidecar.member.leave()
        await sidecar.welcomed()
        await asyncio.sleep(0.01)
        sidecar.head.close()
        sidecar.member.leave()
        await sidecar.ended()

    run_virtual(main())


@pytest.mark.parametrize("seed", range(20))
def test_any_stream_keeps_what_a_member_promises(seed: int) -> None:
    """Whatever comes, and whenever the channel breaks: epochs never fall, no lease beyond what was sent and answered."""

    async def main() -> None:
        rng = random.Random(seed)
        sidecar = Sidecar()
        best = float("-inf")
        highest = 0
        for _ in range(30):
            epoch = max(1, highest + rng.choice([-1, 0, 0, 1]))
            await sidecar.welcomed(epoch)
            sent: list[tuple[int, float]] = []
            seq = 0
            for _ in range(rng.randrange(12)):
                match rng.randrange(5):
                    case 0:
                        if not sidecar.session.done():
                            try:
                                sent.append(((await sidecar.hear(m.Renew, 1)).n, now()))
                            except (TimeoutError, ChannelClosed):
                                continue
                    case 1 if sent and not sidecar.session.done():
                        n, at = rng.choice(sent)
                        sidecar.say(m.Renewed(n=n, controller_epoch=epoch))
                        if epoch >= highest:
                            best = max(best, at + 10)
                    case 2 if not sidecar.session.done():
                        seq += rng.choice([1, 1, 1, 2])
                        sidecar.say(delta(seq, epoch))
                    case 3:
                        await asyncio.sleep(rng.choice([0.0, 0.2, 3.0]))
                    case _ if not sidecar.session.done():
                        sidecar.say(command(rng.choice(["fence", "unfence"]), epoch=epoch))
                assert sidecar.member.lease.until <= best
            await asyncio.sleep(0.001)
            assert sidecar.member.highest_epoch >= highest
            highest = sidecar.member.highest_epoch
            sidecar.head.close()
            await sidecar.ended()

    run_virtual(main())


def test_ports_of_the_kit_follow_the_protocol() -> None:
    assert Ports().copies(None, ()) == []


def copies(ends: dict[int, int], silent: float) -> list[CopyReport]:
    return [
        CopyReport(
            link=LINK,
            topic="t",
            partition=partition,
            leader_epoch=3,
            loaded=True,
            high_watermark=end,
            log_start_offset=0,
            followers={1: FollowerReport(fetch_offset=end, silent=silent)},
        )
        for partition, end in ends.items()
    ]


@pytest.mark.parametrize("local", [True, False])
def test_copies_that_do_not_change_are_told_to_other_sidecars_every_time_to_our_own_head_in_turn(
    local: bool,
) -> None:
    """For a head elsewhere a report that is seconds old is none."""

    async def main() -> None:
        sidecar = Sidecar()
        ends = dict.fromkeys(range(20), 5)
        sidecar.ports.reports = copies(ends, silent=0.1)
        await sidecar.welcomed(local=local)
        heard = []
        for number in range(1, 11):
            heard.append({one.partition for one in decode_copies((await sidecar.hear(m.Report)).copies)})
            ends[0] += number == 3
            sidecar.ports.reports = copies(ends, silent=0.1 * number)  # times alone are no change
        everything = set(range(20))
        assert heard[0] == everything
        if local:
            assert all(len(some) <= 3 for some in heard[1:])
            assert 0 in heard[3]
            assert set().union(*heard[1:]) == everything - {0, 10} | {0}
        else:
            assert heard == [everything] * 10

    run_virtual(main())
