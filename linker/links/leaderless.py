"""Mirror partitions that KRaft cannot elect a leader for: found, and led by a link broker again.

KRaft elects members of the ISR or the ELR. Both can become empty: a change of min.insync.replicas clears the ELR
(ClearElrRecord, KIP-966), and while the only link broker is away the ELR is all there is. From then on no clean
election is possible, although nothing was written since: the link broker has no log that could be behind.

So the link broker is put first among the replicas, which leaves the adding and removing replicas as they are, and an
unclean election takes the first replica that is alive. Real brokers keep their copies: all copied batches have one
leader epoch (E0), so nothing of them is truncated.

This is right only if no real broker led meanwhile, because its clients' records would be truncated. KRaft counts
every leader in the leader epoch. So the election is made unasked only if the epoch shows no leader in between;
otherwise an operator has to ask for it (`linker mirror repair --drop-target-records`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from controller.errors import ControllerError
from controller.judge.hand_over import find
from controller.phases import ENDED
from controller.state import MirrorPartition
from linker.membership import TargetCluster
from wire.errors import LinkerError, error_name
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage, TopicImage
from wire.shown_id import listed

log = logging.getLogger(__name__)

_CALL_TIMEOUT = 15.0


class Stranded(NamedTuple):
    """A partition without a leader, whose link broker cannot be elected."""

    tp: TopicPartition
    replicas: tuple[int, ...]
    led_between: bool  # somebody else may have led since a link broker did


class CannotLead(LinkerError):
    """A stranded partition that is not led again unasked; the message says why, and what to do."""


def stranded(
    states: Iterable[MirrorPartition], topic: TopicImage, link_brokers: Collection[int]
) -> list[Stranded]:
    """Those of a mirror's partitions. Pure."""
    found = []
    for state in states:
        partition = topic.partitions.get(state.partition)
        if (
            partition is None
            or state.phase in ENDED
            or partition.leader >= 0
            or any(broker in link_brokers for broker in (*partition.isr, *partition.elr))
        ):
            continue
        known = state.leader in link_brokers or state.leader < 0
        steps = partition.leader_epoch - max(state.leader_epoch, state.session_epoch)
        # One step is the loss of the leader itself.
        between = not known or bool(partition.isr or partition.elr) or steps > (1 if state.leader >= 0 else 0)
        found.append(Stranded(state.tp, partition.replicas, between))
    return found


async def lead_stranded(
    target: TargetCluster,
    states: Sequence[MirrorPartition],
    topic: TopicImage,
    link_brokers: Collection[int],
    *,
    unsure_too: bool = False,
) -> tuple[frozenset[TopicPartition], list[LinkerError]]:
    """Have the stranded partitions of a mirror led again. Returns the partitions that nobody leads still, with the
    reason; they hold up no other partition of the topic."""
    found = stranded(states, topic, link_brokers)
    sure = [one for one in found if unsure_too or not one.led_between]
    refused: list[LinkerError] = []
    if sure:
        try:
            await lead_again(target, sure, link_brokers)
        except LinkerError as error:
            refused.append(error)
    unsure = [one.tp for one in found if one not in sure]
    if unsure:
        refused.append(
            ControllerError(
                f"nobody leads {listed(map(str, unsure))} at the target, its ISR and ELR are empty, and a real "
                f"broker may have led it meanwhile: see linker mirror repair {topic.name} --link {states[0].link} --dry-run"
            )
        )
    return frozenset(one.tp for one in found if topic.partitions[one.tp.partition].leader < 0), refused


async def lead_again(target: TargetCluster, found: Sequence[Stranded], link_brokers: Collection[int]) -> None:
    """Have a link broker that is alive elected; LinkerError says what was refused. The copies stay."""
    image = target.image
    alive = [
        broker
        for broker in sorted(link_brokers)
        if broker in image.brokers and not image.brokers[broker].fenced
    ]
    lost = [one.tp for one in found if not any(broker in alive for broker in one.replicas)]
    if len(lost) < len(found):
        await _elect(target, [one for one in found if one.tp not in lost], alive, link_brokers)
    if lost:
        raise CannotLead(f"{lost[0]} has no leader, and no link broker that is there is among its replicas")


async def _elect(
    target: TargetCluster, found: Sequence[Stranded], alive: Collection[int], link_brokers: Collection[int]
) -> None:
    ordered: dict[TopicPartition, list[int]] = {}
    for one in found:
        first = [broker for broker in one.replicas if broker in alive]
        rest = [broker for broker in one.replicas if broker not in first]
        if list(one.replicas) != first + rest:
            ordered[one.tp] = first + rest
    if ordered:
        await target.operations.reassign(ordered, timeout=_CALL_TIMEOUT)
        await target.metadata.wait_for(lambda now: _in_order(now, ordered), _CALL_TIMEOUT)
    tps = [one.tp for one in found]
    codes = await target.operations.elect_first_replica(tps, timeout=_CALL_TIMEOUT)
    refused = {tp: code for tp, code in codes.items() if code}
    if refused:
        raise CannotLead(
            "no leader could be elected for "
            + ", ".join(f"{tp} ({error_name(code)})" for tp, code in sorted(refused.items()))
        )
    await target.metadata.wait_for(lambda now: _led(now, tps, link_brokers), _CALL_TIMEOUT)
    log.warning(
        "%s had no leader that the target could elect; a link broker leads again and the copies are kept",
        listed(map(str, tps)),
    )


def _in_order(image: ClusterImage, wanted: Mapping[TopicPartition, Sequence[int]]) -> bool | None:
    for tp, replicas in wanted.items():
        partition = find(image, tp)
        if partition is not None and list(partition.replicas) != list(replicas):
            return None
    return True


def _led(image: ClusterImage, tps: Iterable[TopicPartition], link_brokers: Collection[int]) -> bool | None:
    for tp in tps:
        partition = find(image, tp)
        if partition is None or partition.leader < 0:
            return None
        if partition.leader not in link_brokers:
            raise CannotLead(f"{tp}: broker {partition.leader} was elected instead of the link broker")
    return True
