"""The addresses by which a cluster is found: which of them lead nowhere, or to another cluster.

A running link learns its source's brokers from the source itself. Stale bootstrap.servers go unnoticed until the sidecar
restarts and reaches no broker.
"""

from __future__ import annotations

from linker.checks.preflight import PreflightError, PreflightFinding
from wire.client.cluster import Cluster
from wire.client.cluster_identity import survey
from wire.errors import LinkerError, WireError

_TIMEOUT = 5.0
_AT_START = 2.0
OF_A_LINK = "linker link update LINK --config bootstrap.servers=..., with brokers that stay"
OF_THE_TARGET = "correct target.bootstrap.servers in the sidecar's configuration"


async def check_addresses(name: str, cluster: Cluster, remedy: str) -> list[PreflightFinding]:
    """Of a cluster that was reached. Fatal: an address that answers for another cluster."""
    found = await survey(cluster.bootstrap, cluster.security, cluster.client_id, _TIMEOUT)
    check = f"{name} addresses"
    findings = [
        PreflightFinding(
            check,
            True,
            f"address {address} of bootstrap.servers answers for cluster {answered}, the {name} is "
            f"{cluster.cluster_id}: nothing is read from or sent to it",
            f"take it out, or put right where it leads to: {remedy}",
        )
        for address, answered in found.items()
        if isinstance(answered, str) and answered != cluster.cluster_id
    ]
    findings += [
        PreflightFinding(
            check,
            True,
            f"{sentence}: nothing is read from or sent to it",
            "put right where that address leads to, or the advertised.listeners of the broker that has it now",
        )
        for address, sentence in cluster.foreign.items()
        if address not in found
    ]
    away = [f"{one} ({why.message})" for one, why in found.items() if isinstance(why, WireError)]
    if away:
        nodes = ", ".join(f"{node} at {one.address}" for node, one in sorted(cluster.nodes.items()))
        if len(away) == len(found):
            text = (
                f"no address of bootstrap.servers answers any more ({'; '.join(away)}): what runs lives on what it has "
                f"learnt, and after a restart would not find the {name}"
            )
        else:
            text = f"of bootstrap.servers nobody answers at {'; '.join(away)}"
        findings.append(
            PreflightFinding(
                check, False, text, f"the {name}'s brokers are now {nodes}; if they stay: {remedy}"
            )
        )
    return findings


async def one_cluster(cluster: Cluster) -> None:
    """Before a sidecar joins it: PreflightError if its addresses lead to more than one; silent ones do not count."""
    found = await survey(cluster.bootstrap, cluster.security, cluster.client_id, _AT_START)
    told = {address: one for address, one in found.items() if isinstance(one, str)}
    if len(set(told.values())) > 1:
        shown = "; ".join(f"{address} is of cluster {one}" for address, one in told.items())
        raise PreflightError(
            f"{cluster.name}.bootstrap.servers lead to different clusters: {shown}. Take out the wrong ones"
        )


def not_found(error: LinkerError, link: str, cluster_id: str) -> str:
    """Why a link that begins does not find its source, and what may be done."""
    return (
        f"{error}. Link {link} was made for cluster {cluster_id}; if that has other addresses now: "
        f"linker link update {link} --config bootstrap.servers=..."
    )
