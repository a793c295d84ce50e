"""Groups: which there are, their gate, refusals, promote and demote as records; offsets that are committed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decide import groups as groups
from controller.decide.groups import GroupRules
from controller.decide.unheld_groups import refusal
from controller.errors import IllegalTransition, NotFound, Refused
from controller.group_phases import GroupPhase
from controller.groups import GateKind, GateRecord
from controller.image import ControllerImage
from controller.judge.group_gates import FoundGroup, choose_gate
from controller.judge.group_offsets import (
    Bounds,
    Committed,
    clamp,
    differences,
    not_behind,
    to_commit,
    wanted_offsets,
)
from controller.mirror_group import GroupMove, GroupPolicy, GroupProtocol, MirrorGroup
from controller.phases import Phase
from controller.state import Link, MirrorPartition, MirrorTopic, Record, RemoveGroup, RemoveLink
from wire.frames.types import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
BOTH = GateKind.CONSUMER_AND_TRANSACTION
CLASSIC = GateKind.CLASSIC_AND_TRANSACTION
NOW = 1000


def rules(include: str = ".*", exclude: str = "connect-.*", **more: object) -> GroupRules:
    return GroupRules((re.compile(include),), (re.compile(exclude),), **more)  # type: ignore[arg-type]


def found(name: str = "g", *topics: str, **more: object) -> FoundGroup:
    return FoundGroup(name, more.pop("protocol", GroupProtocol.CLASSIC), frozenset(topics or ("t",)), **more)  # type: ignore[arg-type]


def group(name: str = "g", phase: GroupPhase = GroupPhase.GATED, **more: object) -> MirrorGroup:
    fields = {"topics": ("t",), "gate": BOTH, "protocol": GroupProtocol.CLASSIC, **more}
    return MirrorGroup(link="l", group=name, phase=phase, **fields)  # type: ignore[arg-type]


def image(*more: Record, topics: tuple[str, ...] = ("t",)) -> ControllerImage:
    made = ControllerImage()
    made.replay([Link(name=name, source_cluster_id="c", properties={}) for name in ("l", "m")])
    for topic in topics:
        made.replay(
            [
                MirrorTopic(
                    link="l",
                    topic=topic,
                    topic_id=b"\x01" * 16,
                    source_topic_id=None,
                    partitions=2,
                    target_replicas=((1,), (2,)),
                ),
                *(MirrorPartition(link="l", topic=topic, partition=p, phase=Phase.ACTIVE) for p in range(2)),
            ]
        )
    made.replay(more)
    return made


def look(made: ControllerImage, *seen: FoundGroup, **more: object) -> groups.Discovery:
    options = {"rules": rules(), "consumer_protocol": True, "now": NOW, **more}
    return groups.discover(made, "l", {one.group: one for one in seen}, **options)  # type: ignore[arg-type]


# Discovery.


def test_groups_of_mirrored_topics_are_taken_and_no_others() -> None:
    made = look(image(), found("g"), found("h", "u"), found("connect-x"), found("both", "t", "u"))
    assert [(r.group, r.topics, r.unmirrored, r.phase, r.since) for r in made.records] == [  # type: ignore[union-attr]
        ("both", ("t",), ("u",), GroupPhase.DISCOVERED, NOW),
        ("g", ("t",), (), GroupPhase.DISCOVERED, NOW),
    ]
    assert not made.forget
    assert not look(image(), found("g" * 256)).records  # longer than a path segment may be


def test_what_is_known_and_has_not_changed_is_not_written_again() -> None:
    assert not look(image(group()), found()).records
    [changed] = look(image(group()), found("g", "t", "u")).records
    assert isinstance(changed, MirrorGroup)
    assert (changed.phase, changed.unmirrored) == (GroupPhase.GATED, ("u",))


@pytest.mark.parametrize(
    "phase", [GroupPhase.DRAINING, GroupPhase.FINAL_SYNC, GroupPhase.OPENING, GroupPhase.DEMOTING]
)
def test_nothing_disturbs_a_move(phase: GroupPhase) -> None:
    made = look(image(group(phase=phase)), found("g", "t", "u"), rules=rules(include="other"))
    assert not made.records
    assert not made.forget


def test_a_group_of_another_link_is_refused_by_name() -> None:
    other = replace(group(), link="m")
    [record] = look(image(other), found()).records
    assert isinstance(record, MirrorGroup)
    assert record.phase is GroupPhase.REFUSED
    assert "link m" in (record.reason or "")
    assert "link m" in (refusal(image(other, record), record) or "")
    assert refusal(image(record), record) is None


def test_what_is_forgotten() -> None:
    # excluded by the filter, its mirror deleted
    assert look(image(group()), found(), rules=rules(include="other")).forget == ["g"]
    assert look(image(group(), topics=()), found()).forget == ["g"]
    # gone at the source: one that is held stays, its members may wait on the target
    assert not look(image(group())).forget
    assert look(image(group(phase=GroupPhase.REFUSED))).forget == ["g"]
    # promoted: the source's group may well be gone
    promoted = group(phase=GroupPhase.PROMOTED)
    assert not look(image(promoted, topics=())).forget
    assert look(image(promoted), rules=rules(include="other")).forget == ["g"]


def test_the_gate_follows_protocol_assignors_and_target() -> None:
    assert choose_gate(found(), consumer_protocol=True) is CLASSIC  # nobody was seen: it may be anybody
    assert choose_gate(found(), consumer_protocol=False) is CLASSIC
    plain = found(assignors=frozenset({"range", "cooperative-sticky"}))
    assert choose_gate(plain, consumer_protocol=True) is BOTH
    for name in ("sticky", "stream", "our-own"):
        carrying = found(assignors=frozenset({"range", name}))
        assert choose_gate(carrying, consumer_protocol=True) is CLASSIC
    malformed = found(assignors=frozenset({"range"}), malformed=True)
    assert choose_gate(malformed, consumer_protocol=True) is CLASSIC
    modern = found(protocol=GroupProtocol.CONSUMER, assignors=frozenset({"our-own"}))
    assert choose_gate(modern, consumer_protocol=True) is BOTH
    assert choose_gate(found(protocol=GroupProtocol.CONSUMER), consumer_protocol=True) is BOTH
    assert choose_gate(plain, consumer_protocol=True, wanted=GateKind.TRANSACTION) is GateKind.TRANSACTION


def test_a_group_that_is_demoted_keeps_the_gate_that_stands_while_nobody_is_seen() -> None:
    stands = GateRecord(group="g", kind=BOTH)
    demoted = group(phase=GroupPhase.DEMOTED, gate=BOTH, gate_state=stands)
    assert not look(image(demoted), found()).records
    (refused,) = look(image(group(phase=GroupPhase.REFUSED, gate=BOTH)), found()).records
    assert isinstance(refused, MirrorGroup)
    assert refused.gate is CLASSIC


def test_a_standing_gate_is_changed_only_for_what_was_seen() -> None:
    carrying = found(assignors=frozenset({"sticky"}))
    assert look(image(group()), carrying).hold_otherwise == {"g": CLASSIC}
    assert not look(image(group(gate=CLASSIC)), found()).hold_otherwise  # empty: nothing is known
    [record] = look(image(group(phase=GroupPhase.REFUSED)), carrying).records
    assert isinstance(record, MirrorGroup)
    assert record.gate is CLASSIC


# Promote and demote.


def promote(made: ControllerImage, *names: str, **more: object) -> list[Record]:
    options = {"force": False, "partial": False, "timeout_ms": 500, "now": NOW, **more}
    records, _ = groups.begin_promote(made, "l", list(names) or None, **options)  # type: ignore[arg-type]
    return records


def test_a_promote_names_its_groups_and_its_limit() -> None:
    [record] = promote(image(group()), "g", "g")
    assert record == group(
        phase=GroupPhase.DRAINING, move=GroupMove(asked_at=NOW, until=NOW + 500), since=NOW
    )
    [one] = promote(image(group(), group("h", GroupPhase.PROMOTED)))
    assert isinstance(one, MirrorGroup)
    assert one.group == "g"


def test_refusals_of_a_promote_name_every_group() -> None:
    made = image(
        group(unmirrored=("u", "v")),
        group("h", GroupPhase.REFUSED, reason="is active on the target: app at host"),
        group("i", GroupPhase.DRAINING),
        group("j", GroupPhase.PROMOTED),
    )
    with pytest.raises(
        Refused, match=r"group g: it also reads u, v.*--partial.*group h: .*app at host.*group i"
    ):
        promote(made)
    with pytest.raises(NotFound, match="no group 'x'"):
        promote(made, "x")
    with pytest.raises(NotFound):
        groups.begin_promote(made, "nolink", None, force=False, partial=False, timeout_ms=None, now=NOW)
    with pytest.raises(Refused, match="PROMOTED"):
        promote(made, "j")
    with pytest.raises(Refused, match="no group to promote"):
        promote(image())
    assert promote(made, "g", partial=True)
    [taken] = promote(made, "h", force=True)
    assert isinstance(taken, MirrorGroup)
    assert (taken.phase, taken.gate_state, taken.move) == (GroupPhase.PROMOTED, None, None)


def test_demote_only_before_the_topics_are_promoted() -> None:
    promoted = group(phase=GroupPhase.PROMOTED)
    [record], _ = groups.begin_demote(image(promoted), "l", ["g"], timeout_ms=None, now=NOW)
    assert isinstance(record, MirrorGroup)
    assert (record.phase, record.move) == (GroupPhase.DEMOTING, GroupMove(asked_at=NOW))
    ended = MirrorPartition(link="l", topic="t", partition=1, phase=Phase.PROMOTED)
    with pytest.raises(Refused, match="its topics t are promoted"):
        groups.begin_demote(image(promoted, ended), "l", ["g"], timeout_ms=None, now=NOW)
    with pytest.raises(Refused, match="only promoted"):
        groups.begin_demote(image(group()), "l", ["g"], timeout_ms=None, now=NOW)


@pytest.mark.parametrize("phase", [GroupPhase.DRAINING, GroupPhase.FINAL_SYNC])
def test_a_promote_that_waits_may_be_told_not_to(phase: GroupPhase) -> None:
    waiting = group(phase=phase, move=GroupMove(asked_at=1), unmirrored=("u",), since=1)
    with pytest.raises(Refused, match=f"it is {phase}"):
        promote(image(waiting), "g")
    [record] = promote(image(waiting), "g", force=True)
    assert record == replace(waiting, move=GroupMove(asked_at=NOW, until=NOW + 500, force=True))
    with pytest.raises(Refused, match=f"it is {phase}"):
        promote(image(replace(waiting, move=GroupMove(asked_at=1, force=True))), "g", force=True)
    for other in (GroupPhase.OPENING, GroupPhase.DEMOTING):
        with pytest.raises(Refused, match=f"it is {other}"):
            promote(image(replace(waiting, phase=other)), "g", force=True)


ON_THE_WAY = [Phase.CATCHING_UP, Phase.FENCED, Phase.ALIGNED, Phase.VALIDATED]
ELSEWHERE = [Phase.HANDED_OVER, Phase.PROMOTED, Phase.FAILED_OVER]


def in_phase(phase: Phase, partition: int = 1, topic: str = "t") -> MirrorPartition:
    return MirrorPartition(link="l", topic=topic, partition=partition, phase=phase)


@pytest.mark.parametrize("phase", list(Phase))
def test_the_way_back_ends_where_the_log_goes_on_at_the_target(phase: Phase) -> None:
    returning = group(phase=GroupPhase.DEMOTING, move=GroupMove(asked_at=1))
    made = image(returning, in_phase(phase))
    assert (groups.no_way_back(made, returning) is not None) == (phase in ELSEWHERE)
    assert (groups.promote_in_the_way(made, returning) is not None) == (phase in ON_THE_WAY)
    promoted = image(group(phase=GroupPhase.PROMOTED), in_phase(phase))
    if phase in (*ON_THE_WAY, *ELSEWHERE):
        with pytest.raises(Refused, match=r"group g: its topics t are (being )?promoted"):
            groups.begin_demote(promoted, "l", ["g"], timeout_ms=None, now=NOW)
        with pytest.raises(Refused, match="group g is not demoted: its topics t are"):
            groups.end_demote(made, "l", "g", NOW)
    else:
        assert groups.begin_demote(promoted, "l", ["g"], timeout_ms=None, now=NOW)[0]
        [ended] = groups.end_demote(made, "l", "g", NOW, move=None, reason="x")
        assert ended == group(phase=GroupPhase.DEMOTED, since=NOW, reason="x")
    # Topics of others are not in its way.
    assert groups.no_way_back(image(topics=("t", "u")), group(topics=("t",))) is None


def test_groups_on_their_way_back_are_named_by_topic() -> None:
    made = image(
        group("g", GroupPhase.DEMOTING, topics=("t", "u")),
        group("h", GroupPhase.DEMOTING, topics=("u",)),
        group("i", GroupPhase.PROMOTED),
    )
    assert groups.returning(made, "l", ["t"]) == ["g"]
    assert groups.returning(made, "l", ["u", "x"]) == ["g", "h"]
    assert groups.returning(made, "m", ["t"]) == []


@pytest.mark.parametrize(
    ("phases", "without"),
    [
        ((Phase.FAILED_OVER, Phase.FAILED_OVER), True),
        ((Phase.FAILED_OVER, Phase.PROMOTED), True),
        ((Phase.PROMOTED, Phase.PROMOTED), False),
        ((Phase.FAILED_OVER, Phase.ACTIVE), False),
        ((Phase.FAILED_OVER, Phase.HANDED_OVER), False),
        ((Phase.ACTIVE, Phase.ACTIVE), False),
    ],
)
def test_a_dead_source_is_not_waited_for_behind_a_fail_over(
    phases: tuple[Phase, Phase], without: bool
) -> None:
    made = image(*(in_phase(phase, partition) for partition, phase in enumerate(phases)))
    asked = group(phase=GroupPhase.DRAINING, move=GroupMove(asked_at=1))
    assert groups.without_source(made, asked) == ("its topics are failed over" if without else None)
    forced = replace(asked, move=GroupMove(asked_at=1, force=True))
    assert "by force" in (groups.without_source(made, forced) or "")
    assert groups.without_source(made, group(topics=("x",))) is None


def test_steps_follow_the_table() -> None:
    made = image(group(phase=GroupPhase.OPENING))
    with pytest.raises(IllegalTransition, match=r"group g.*OPENING and cannot become GATED"):
        groups.step(made, "l", "g", GroupPhase.GATED, NOW)
    assert groups.step(made, "l", "g", GroupPhase.PROMOTED, NOW, reason="x") == [
        group(phase=GroupPhase.PROMOTED, since=NOW, reason="x")
    ]
    assert not groups.amend(made, "l", "g", reason=None)
    with pytest.raises(Refused, match="wait for the end"):
        groups.forget(made, "l", "g")
    assert groups.forget(image(group()), "l", "g") == [RemoveGroup("l", "g")]
    assert not groups.forget(image(), "l", "g")


def test_a_link_takes_its_groups_with_it() -> None:
    made = image(group(), replace(group("other"), link="m"))
    moving = replace(group(phase=GroupPhase.DRAINING), move=GroupMove(asked_at=1))
    with pytest.raises(Refused, match="moving groups g"):
        groups.refuse_while_moving(image(moving), "l")
    groups.refuse_while_moving(made, "l")
    made.replay([RemoveLink("l")])
    assert list(made.groups) == [("m", "other")]
    assert not [path for path in made.versions if path.startswith("/links/l/")]


def test_policy_and_override_come_from_the_rules() -> None:
    [record] = look(image(), found(), rules=rules(policy=GroupPolicy.AUTO, gate=GateKind.CLASSIC)).records
    assert isinstance(record, MirrorGroup)
    assert (record.policy, record.gate) == (GroupPolicy.AUTO, GateKind.CLASSIC)


# Offsets.


def test_commits_stay_inside_what_the_target_has() -> None:
    assert clamp(5, Bounds(10, 20)) == 10
    assert clamp(25, Bounds(10, 20)) == 20
    assert clamp(15, Bounds(10, 20)) == 15
    assert clamp(25, None) == 25
    assert clamp(5, Bounds(10, 0)) == 10  # an end that is not known yet never wins over the start


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_clamped_is_nearest_inside(offset: int, one: int, other: int) -> None:
    start, end = sorted((one, other))
    got = clamp(offset, Bounds(start, end))
    assert start <= got <= end
    assert got == offset or abs(got - offset) == min(abs(offset - start), abs(offset - end))


def test_only_changes_of_mirrored_topics_are_committed() -> None:
    source = {
        T0: Committed(30, "m"),
        T1: Committed(7),
        U0: Committed(9),
        TopicPartition("t", 2): Committed(-1),
    }
    wanted = wanted_offsets(source, {"t"}, {T0: Bounds(0, 20)})
    assert wanted == {T0: Committed(20, "m"), T1: Committed(7)}
    assert to_commit(wanted, {T0: Committed(20), T1: Committed(7)}) == {T0: Committed(20, "m")}
    assert to_commit(wanted, wanted) == {}
    assert differences(wanted, {T0: Committed(15, "m")}) == {T0: 5, T1: 7}
    assert differences(wanted, {T0: Committed(21), T1: Committed(7, "other")}) == {T0: -1}


def test_an_opening_that_is_repeated_sends_nobody_back() -> None:
    final = {T0: Committed(10, "m"), T1: Committed(5)}
    assert not_behind(final, {T0: Committed(12, "n"), T1: Committed(3)}) == {
        T0: Committed(12, "n"),
        T1: Committed(5),
    }
