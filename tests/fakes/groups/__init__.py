"""Group and transaction coordinators for a FakeCluster: `groups = FakeGroups(cluster)`.

Modelled: both group protocols, the conversion of a classic group when a client of the other protocol joins it,
committed and pending offsets, coordinators that move, load, restart, or are not there yet, sessions and transactions that
expire (by a clock that the test moves); streams and share groups by `OtherKinds(groups)`. Left out: static members, going
back from the consumer protocol to the classic one, and rights (inject the error instead).
"""

from tests.fakes.groups.clients import ClassicClient, ConsumerClient
from tests.fakes.groups.coordinator import FakeGroups
from tests.fakes.groups.other_kinds import OtherGroup, OtherKinds

__all__ = ["ClassicClient", "ConsumerClient", "FakeGroups", "OtherGroup", "OtherKinds"]
