"""Directed stories: one chain of events each, where chance would have to meet too many at once. Nothing else goes wrong.

A story says what becomes of requests (`fate`), hears of each state of a partition that is written (`stepped`), and makes
brokers, sidecars and the store fail at that moment. With the product as it is every story holds; without the rule that it
is about, an invariant is broken (`mutations`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from controller.alter_partition import AlterPartitionItem
from controller.phases import Phase
from tests.controller.kraft_model import INVALID_UPDATE_VERSION
from tests.sim.cluster import REAL, UNCLEAN, Cluster
from tests.sim.faults import Clients, Faults
from tests.sim.sidecar import Sidecar
from tests.sim.world import World

_ASKED = 2.0  # when the switch is asked for
_LOOK = 0.002


class Fate(NamedTuple):
    """Of an AlterPartition. `code`: it is refused with that; None: nobody is answered. `after`: seconds until it is carried
    out all the same; None: never."""

    code: int | None = None
    after: float | None = None


class Directed:
    """A switch from the source to the target."""

    partitions = 1
    seed = 0
    settles: float | None = None  # seconds within which everything does in the end; None: as in other stories

    def __init__(self, world: World, clients: Clients, faults: Faults) -> None:
        self.world = world
        self.clients = clients
        self.faults = faults

    def start(self) -> None:
        self.world.fate = self.fate
        self.world.stepped = self.stepped
        self.world.held = self.held
        self.world.loop.kernel(_ASKED, self.faults.ask_promote)

    def peace(self) -> None:
        """Whatever was begun ends."""
        self.world.fate = None
        self.world.stepped = None
        self.world.held = None
        self.clients.silent = False

    # What a story is made of.

    def fate(self, cluster: Cluster, items: Sequence[AlterPartitionItem]) -> Fate | None:
        """Of an AlterPartition that was sent; None: that of any other."""
        return None

    def stepped(self, state: Mapping[str, Any] | None) -> None:
        """The state of a partition was written, or removed."""

    def held(self, cluster: Cluster) -> float:
        """For how many seconds the question of where a metadata log ends is on its way."""
        return 0.0

    def hands_over(self, cluster: Cluster, items: Sequence[AlterPartitionItem]) -> bool:
        """To the target's own brokers, of what the source owns."""
        return cluster is self.world.target and any(
            member.broker_id in REAL and self.world.owner[item.tp] is self.world.source
            for item in items
            for member in item.new_isr
        )

    @staticmethod
    def epochs_rise(cluster: Cluster, items: Sequence[AlterPartitionItem]) -> None:
        """Of the partitions."""
        partitions = cluster.kraft.partitions
        for item in items:
            partition = partitions[item.tp]
            partitions[item.tp] = replace(partition, partition_epoch=partition.partition_epoch + 1)
        cluster.kraft.changed()

    def later(self, seconds: float, what: Callable[..., object], *args: object) -> None:
        self.world.loop.kernel(seconds, what, *args)


class RefusedAndUnknown(Directed):
    """The hand-over of one partition is refused, that of another one of its topic is not answered and comes later. The store
    takes nothing meanwhile, so the switch is given up."""

    partitions = 2

    def __init__(self, world: World, clients: Clients, faults: Faults) -> None:
        super().__init__(world, clients, faults)
        self.sent: set[int] = set()

    def fate(self, cluster: Cluster, items: Sequence[AlterPartitionItem]) -> Fate | None:
        partitions = {item.tp.partition for item in items}
        if not self.hands_over(cluster, items) or partitions & self.sent:
            return None
        self.sent |= partitions
        if 0 in partitions:
            self.epochs_rise(cluster, items)  # as if a link broker had left the ISR
            return Fate(INVALID_UPDATE_VERSION)
        store = self.world.store
        store.fail_before = 1.0
        self.later(2.3, setattr, store, "fail_before", 0.0)
        return Fate(after=2.55)


class LateAfterAll(Directed):
    """No hand-over is answered, and one of them is carried out after the switch was given up."""

    def fate(self, cluster: Cluster, items: Sequence[AlterPartitionItem]) -> Fate | None:
        return Fate(after=10.0) if self.hands_over(cluster, items) else None


class GivenBackHalfWay(Directed):
    """A broker of the target dies when the hand-over has been written down, so it is never sent. The topic goes back, its
    own brokers lead, and the link controller loses its seat before it is written that the mirror is ACTIVE again. The next
    one finds VALIDATED, and the target's broker there."""

    def __init__(self, world: World, clients: Clients, faults: Faults) -> None:
        super().__init__(world, clients, faults)
        self.validated = self.struck = False

    def start(self) -> None:
        super().start()
        self.later(_ASKED - 0.5, setattr, self.clients, "silent", True)

    def stepped(self, state: Mapping[str, Any] | None) -> None:
        if state is None or self.struck:
            return
        if state["phase"] == Phase.VALIDATED and not self.validated:
            self.validated = True
            self.world.target.replicas.stop(2, 9.5, unclean=False)
        if state["phase"] == Phase.TAKING and state.get("taken") is None and self.validated:
            self.struck = True
            self.later(0.0, self.strike)

    def strike(self) -> None:
        """Its sidecar lives, so no epoch at the target rises."""
        self.faults.lose_seat()


class GivenBackByAnother(GivenBackHalfWay):
    """The same, and the sidecar dies: link brokers leave ISRs, so the next hand-over has other epochs."""

    def strike(self) -> None:
        head = self.faults._head()
        if head is not None:
            self.world.kill(head.broker_id)
            self.later(3.0, self.faults._start, head.broker_id)


class BackAndDeadAgain(Directed):
    """A switch of two partitions is given up for the same reason. The first one's own brokers lead it again and commit
    records, while the request that gives the other one back is never answered. Then all of the source's brokers die. A link
    broker is in the ISR again, so it leads; the log ends elsewhere now than was noted."""

    partitions = 2

    def __init__(self, world: World, clients: Clients, faults: Faults) -> None:
        super().__init__(world, clients, faults)
        self.validated = self.giving_back = self.struck = False

    def stepped(self, state: Mapping[str, Any] | None) -> None:
        if state is None:
            return
        if state["phase"] == Phase.VALIDATED and not self.validated:
            self.validated = True
            self.world.target.replicas.stop(2, 9.5, unclean=False)
        if state["phase"] == Phase.TAKING and self.validated and not self.giving_back:
            self.giving_back = True
            self.later(_LOOK, self.look)

    def fate(self, cluster: Cluster, items: Sequence[AlterPartitionItem]) -> Fate | None:
        """None of the second partition until all have died."""
        to_real = any(
            item.tp.partition == 1 and member.broker_id in REAL for item in items for member in item.new_isr
        )
        return Fate() if cluster is self.world.source and to_real and not self.struck else None

    def look(self) -> None:
        if self.world.source.kraft.partitions[self.world.tps[0]].leader in REAL:
            self.led_again()
        else:
            self.later(_LOOK, self.look)

    def led_again(self) -> None:
        self.later(3.0, self.strike)  # by then the call has ended, and the link controller has seen it

    def strike(self) -> None:
        self.struck = True
        for broker in REAL:
            self.world.source.replicas.stop(broker, 1.0, unclean=False)


class BackAndFollowedByAnother(BackAndDeadAgain):
    """The same, and the first partition's sidecar is taken for dead in the moment in which its own brokers lead again. The
    next one was never told to stop, and they die before the link controller has seen that they lead."""

    def led_again(self) -> None:
        world, tp = self.world, self.world.tps[0]
        sidecar = world.target.kraft.partitions[tp].leader
        for cluster in world.clusters:
            cluster.kraft.fence(cluster.links[sidecar])
        self.later(1.5, self.strike)


class EndOfOne(Directed):
    """From the take-over on, the target's brokers and the source's followers copy nothing for a while: only the leader and
    the link broker have the end of the log. Once the source's brokers are out of the ISR the sidecar dies, and the leader
    restarts without what was not committed. Clients are silent, for the fence waits for what they have sent."""

    settles = 5.0  # longer, writes pile up that nobody takes

    def __init__(self, world: World, clients: Clients, faults: Faults) -> None:
        super().__init__(world, clients, faults)
        self.lazy = False

    def start(self) -> None:
        super().start()
        self.later(_ASKED - 0.5, setattr, self.clients, "silent", True)

    def stepped(self, state: Mapping[str, Any] | None) -> None:
        if state is not None and state["phase"] == Phase.TAKING and not self.lazy:
            self.lazy = True
            until = self.world.loop.time() + 1.2
            leader = self.world.source.kraft.partitions[self.world.tps[0]].leader
            for cluster in self.world.clusters:
                idle = [b for b in REAL if cluster is self.world.target or b != leader]
                cluster.replicas.lazy.update(dict.fromkeys(idle, until))
            self.world.source.append(self.world.tps[0], "tail")
            self.later(_LOOK, self.look, leader)

    def look(self, leader: int) -> None:
        world, tp = self.world, self.world.tps[0]
        if world.source.electable(tp):
            self.later(_LOOK, self.look, leader)
            return
        sidecar = world.source.sidecar_at(world.source.kraft.partitions[tp].leader)
        world.kill(sidecar)
        self.later(3.0, self.faults._start, sidecar)
        world.source.replicas.stop(leader, 1.0, unclean=False)
        del world.source.replicas.logs[tp][leader][world.source.replicas.committed[tp] :]


class GivenBackByTwo(Directed):
    """A switch is given up, and all brokers of the source die. Two tasks give the topic back then, and one of them waits for
    an answer until the other has ended that and the next switch has begun. It goes on right behind that one's shrink, and
    what it sends comes late."""

    def __init__(self, world: World, clients: Clients, faults: Faults) -> None:
        super().__init__(world, clients, faults)
        clients.silent = True
        self.shrunk = self.dead = False
        self.waits: float | None = None
        self.late: Sequence[AlterPartitionItem] = ()

    def start(self) -> None:
        super().start()
        self.later(8.0, self.faults.ask_promote)

    def fate(self, cluster: Cluster, items: Sequence[AlterPartitionItem]) -> Fate | None:
        if cluster is not self.world.source:
            return None
        widens = any(member.broker_id in REAL for item in items for member in item.new_isr)
        if not self.dead:
            return None if widens else Fate()
        if self.world.loop.time() > 8.0 and not widens and not self.shrunk:
            self.shrunk = True
            return Fate(after=0.0)
        if self.shrunk and widens and not self.late:
            self.late = items
            return Fate()
        return None

    def stepped(self, state: Mapping[str, Any] | None) -> None:
        if state is None:
            if not self.dead:
                self.dead = True
                for number, broker in enumerate(REAL):
                    self.later(0.1 + number * 0.03, self.stop, broker)
        elif state["phase"] == Phase.TAKING and self.dead and self.waits is None:
            self.waits = 8.5
        elif state["phase"] == Phase.TAKEN and self.late:
            self.later(0.01, self.land)

    def held(self, cluster: Cluster) -> float:
        waits, now = self.waits, self.world.loop.time()
        if cluster is not self.world.source or waits is None or now > waits:
            return 0.0
        self.waits = 0.0
        return max(0.0, waits - now)

    def stop(self, broker: int) -> None:
        self.world.source.replicas.stop(broker, 1.2, unclean=False)

    def land(self) -> None:
        self.world.source.kraft.alter_partition(self.late[0].leader, self.late)


class StoodStill(Directed):
    """A switch is given up, and the topic has its own configs again. The link controller stands still; the next one switches
    the topic. Then all others stand still, and the first one goes on: it sees the configs of a take-over that it knows
    nothing of. Should it set the topic's own, one of the source's brokers registers again in that moment."""

    def __init__(self, world: World, clients: Clients, faults: Faults) -> None:
        super().__init__(world, clients, faults)
        self.first: Sidecar | None = None
        self.owned = False

    def fate(self, cluster: Cluster, items: Sequence[AlterPartitionItem]) -> Fate | None:
        widens = any(member.broker_id in REAL for item in items for member in item.new_isr)
        return Fate() if cluster is self.world.source and not widens and self.first is None else None

    def stepped(self, state: Mapping[str, Any] | None) -> None:
        if state is None and self.first is None:
            self.first = self.faults._head()
            self.later(0.5, self.stand_still)
        elif state is not None and state["phase"] == Phase.PROMOTED and not self.owned:
            self.owned = True
            self.later(0.5, self.others_stand_still)

    def stand_still(self) -> None:
        assert self.first is not None
        self.first.process.pause()
        for seconds in (3.0, 5.0):
            self.later(seconds, self.faults.ask_promote)

    def others_stand_still(self) -> None:
        others = [one for one in self.world.sidecars.values() if one is not self.first]
        for one in others:
            one.process.pause()
            self.later(4.0, one.process.go_on)
        assert self.first is not None
        self.later(2.0, self.first.process.go_on)
        self.later(2.0, self.look)

    def look(self) -> None:
        source = self.world.source
        if source.configs["t"].get(UNCLEAN) == "false":
            self.later(_LOOK, self.look)
        elif self.owned:
            source.kraft.fence(REAL[0])
            source.kraft.unfence(REAL[0])


DIRECTED = (
    RefusedAndUnknown,
    LateAfterAll,
    GivenBackHalfWay,
    GivenBackByAnother,
    BackAndDeadAgain,
    BackAndFollowedByAnother,
    EndOfOne,
    GivenBackByTwo,
    StoodStill,
)
