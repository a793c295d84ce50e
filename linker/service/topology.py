"""The clusters that the sidecar's links reach, directly and behind their sources, and the ways that topics come."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from admin.models import MirrorState, MirrorSummary, TopicWay, Topology, UpstreamCluster
from controller.plan.upstream import UNKNOWN
from linker.links.runtime import LinkRuntime
from linker.links.source_topics import all_topics
from linker.service.base import ServiceBase
from wire.errors import LinkerError
from wire.together import together

_PATIENCE = 8.0  # the caller waits for the answer


class TopologyView(ServiceBase):
    async def topology(self) -> Topology:
        """Sources are asked at the same time, each for a few seconds: one that is down holds up none."""
        runtimes = list(self._sidecar.links.values())
        told = await together([self._back(runtime) for runtime in runtimes])
        target = self._sidecar.target.cluster.cluster_id or ""
        direct: list[UpstreamCluster] = []
        ways: list[TopicWay] = []
        behind: dict[str, int] = {}
        for runtime, found in zip(runtimes, told, strict=True):
            trouble = found if isinstance(found, LinkerError) else None
            back = [] if isinstance(found, LinkerError) else found
            mirrors = [m for m in await self._mirrors(runtime) if m.state is not MirrorState.PROMOTED]
            fields = self._summary_fields(runtime, mirrors)
            direct.append(
                UpstreamCluster(
                    cluster_id=fields["source_cluster_id"],
                    hops=1,
                    link=runtime.name,
                    bootstrap_servers=fields["bootstrap_servers"],
                    state=fields["state"],
                    answers=trouble is None,
                    reason=fields["reason"] if trouble is None else str(trouble),
                    lag=_lag(mirrors),
                    topics=len(mirrors),
                    back=None if trouble else sum(target in origin for origin in back),
                )
            )
            ways += (mine := self._ways(runtime, mirrors, target))
            passed = [way.clusters[:-2] for way in mine]
            passed += [list(origin) for origin in back if target not in origin]
            for clusters in passed:
                for hops, cluster in enumerate(reversed(clusters), 2):
                    behind[cluster] = min(hops, behind.get(cluster, hops))
        known = {one.cluster_id for one in direct} | {target, UNKNOWN}
        farther = [
            UpstreamCluster(
                cluster_id=cluster,
                hops=hops,
                topics=sum(way.topics for way in ways if cluster in way.clusters),
            )
            for cluster, hops in sorted(behind.items(), key=lambda one: (one[1], one[0]))
            if cluster not in known
        ]
        return Topology(
            at=datetime.now(UTC), target_cluster_id=target, clusters=[*direct, *farther], ways=ways
        )

    async def _back(self, runtime: LinkRuntime) -> list[tuple[str, ...]] | LinkerError:
        """The origins of those topics of a source that are mirrors there."""
        try:
            async with asyncio.timeout(_PATIENCE):
                there = await all_topics(runtime.source)
                origins = await runtime.new_mirrors.sidecars.origins(there)
        except TimeoutError:
            return LinkerError(f"the source did not answer within {_PATIENCE:g} s")
        except LinkerError as error:
            return error
        return [origin for origin in origins.values() if origin and not isinstance(origin, LinkerError)]

    def _ways(self, runtime: LinkRuntime, mirrors: list[MirrorSummary], target: str) -> list[TopicWay]:
        ways: dict[tuple[str, ...], list[MirrorSummary]] = {}
        for mirror in mirrors:
            stored = self._image.mirrors.get((runtime.name, mirror.topic))
            upstream = () if stored is None else stored.upstream
            way = (*(upstream or (UNKNOWN, runtime.link.source_cluster_id)), target)
            ways.setdefault(way, []).append(mirror)
        return [
            TopicWay(
                link=runtime.name,
                clusters=list(way),
                topics=len(found),
                partitions=sum(mirror.partitions for mirror in found),
                states={
                    state: count
                    for state in MirrorState
                    if (count := sum(mirror.state is state for mirror in found))
                },
                lag=_lag(found),
            )
            for way, found in sorted(ways.items())
        ]


def _lag(mirrors: list[MirrorSummary]) -> int | None:
    lags = [mirror.lag for mirror in mirrors if mirror.lag is not None]
    return sum(lags) if len(lags) == len(mirrors) else None
