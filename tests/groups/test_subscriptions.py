"""What classic members write into their subscriptions, and what a coordinator of the consumer protocol makes of it."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from controller.group_phases import GroupPhase
from controller.groups import GateKind
from controller.mirror_group import GroupProtocol
from groups import discovery
from groups.members import coordinator_can_read
from groups.views import GroupView, classic_view
from tests.links.group_rig import Rig


def head(version: int, topics: tuple[str, ...] = ("orders",), user_data: bytes | None = b"") -> bytes:
    """The fields that every version has; kafka-go says version 1 and stops here, as it does kafkajs with version 0."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    data = struct.pack(">i", -1) if user_data is None else struct.pack(">i", len(user_data)) + user_data
    return struct.pack(">hi", version, len(topics)) + names + data


NOTHING_OWNED = struct.pack(">i", 0)
OWNED = struct.pack(">ih6sii", 1, 6, b"orders", 1, 0)
GENERATION = struct.pack(">i", 7)
NO_RACK = struct.pack(">h", -1)
RACK = struct.pack(">h1s", 1, b"a")


@pytest.mark.parametrize(
    ("metadata", "readable"),
    [
        (head(0), True),  # kafkajs, kafka-python
        (head(0, user_data=None), True),
        (head(0, user_data=b"sticky's own"), True),
        (head(1) + NOTHING_OWNED, True),  # Java 2.4 to 3.1
        (head(1) + OWNED, True),
        (head(2) + OWNED + GENERATION, True),
        (head(3, user_data=None) + NOTHING_OWNED + GENERATION + NO_RACK, True),  # Java 3.5 and later, sarama
        (head(3) + OWNED + GENERATION + RACK, True),
        (head(9) + OWNED + GENERATION + RACK + b"more", True),  # newer than anybody knows
        (head(0) + b"more", True),
        (head(1), False),  # kafka-go 0.4
        (head(2) + NOTHING_OWNED, False),
        (head(3) + NOTHING_OWNED + GENERATION, False),
        (head(-1), False),
        (b"", False),
        (b"\0", False),
        (b"opaque to everybody", False),
        (head(0)[:-1], False),
    ],
)
def test_the_coordinator_reads_a_subscription_as_its_version_has_it(metadata: bytes, readable: bool) -> None:
    assert coordinator_can_read(metadata) is readable


def described(metadata: bytes, assignor: str = "range") -> GroupView:
    member = SimpleNamespace(
        member_id="m", client_id="c", client_host="/h", member_assignment=b"", member_metadata=metadata
    )
    return classic_view(
        SimpleNamespace(
            group_id="g",
            group_state="Stable" if assignor else "PreparingRebalance",
            protocol_type="consumer",
            protocol_data=assignor,
            members=[member],
        )
    )


def test_a_member_in_a_rebalance_says_nothing_against_it() -> None:
    assert described(head(1)).malformed
    assert not described(head(0)).malformed
    assert not described(b"", assignor="").malformed  # the broker leaves subscriptions out meanwhile


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [(head(1), GateKind.CLASSIC_AND_TRANSACTION), (head(0), GateKind.CONSUMER_AND_TRANSACTION)],
)
async def test_a_group_whose_members_were_seen_gets_the_gate_that_they_can_join(
    metadata: bytes, kind: GateKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        view = described(metadata)
        assert view.protocol is GroupProtocol.CLASSIC
        monkeypatch.setattr(discovery, "_may_have_members", lambda _: True)

        async def describe(names: object, *, timeout: float) -> tuple[dict[str, GroupView], dict[str, str]]:
            return {"g": view}, {}

        monkeypatch.setattr(rig.tools.source, "describe", describe)
        rig.run()
        await rig.phase("g", GroupPhase.GATED)
        assert rig.group("g").gate is kind
