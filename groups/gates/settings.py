"""Durations and retries of gates. One set per link; the defaults suit a stock target."""

from __future__ import annotations

from dataclasses import dataclass

# Clients that wait for a rebalance or a revocation are never given up on: Kafka's largest rebalance timeout
# (24.8 days).
REBALANCE_TIMEOUT_MS = 2**31 - 1
# The assignors of the clients in use; a client whose assignor the gate does not name cannot join and says so. The last ones
# are kafkajs', kafka-go's second, and Kafka Streams'.
DEFAULT_PROTOCOLS = (
    "range",
    "roundrobin",
    "sticky",
    "cooperative-sticky",
    "RoundRobinAssigner",
    "rack-affinity",
    "stream",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """Seconds, unless the name says otherwise."""

    # One step (commit, leave, ...), wherever its coordinator moves meanwhile.
    operation_timeout: float = 30.0
    # Taking a group: joining it, and owning everything.
    take_timeout: float = 60.0
    # A heartbeat: shorter than what is left of a session, so that a dead coordinator is looked for again.
    heartbeat_timeout: float = 15.0
    # How long JoinGroup may wait at the coordinator (group.initial.rebalance.delay.ms is 3 s in stock Kafka).
    join_timeout: float = 30.0
    # How long a classic gate holds without a heartbeat; the target caps it by group.max.session.timeout.ms.
    classic_session: float = 300.0
    classic_heartbeat: float = 10.0
    # How long a transaction holds without a renewal; the target caps it by transaction.max.timeout.ms.
    transaction_timeout: float = 600.0
    # A renewal is due after this part of the transaction's timeout.
    transaction_renew_at: float = 0.5
    # Transactions that were taken over are renewed within this time, spread.
    take_over_spread: float = 30.0
    # Opening: how often a client asks again for stable offsets at the least (librdkafka's retry.backoff.max.ms is 1 s).
    settle_time: float = 2.0
    # Opening: how long clients have to hear that others have joined. That is a heartbeat of theirs (heartbeat.interval.ms
    # is 3 s in most libraries), after what the coordinator takes (group.consumer.assignment.interval.ms, 1 s).
    rejoin_time: float = 5.0
    rejoin_poll: float = 0.5
