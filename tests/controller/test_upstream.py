"""The guard against rings: links over up to four clusters in all orders never lead a record back, and refuse no other."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.errors import Refused
from controller.plan.upstream import UNKNOWN, refusal, tell, told

CLUSTERS = "ABCD"


class Topic(NamedTuple):
    """As its cluster has it; `passed` is the truth that nobody tells."""

    upstream: tuple[str, ...] = ()
    passed: frozenset[str] = frozenset()


class Way(NamedTuple):
    source: str
    target: str
    prefix: str


@dataclass
class World:
    """Clusters with topics; every follower of a link asks the guard."""

    topics: dict[str, dict[str, Topic]] = field(default_factory=lambda: {one: {} for one in CLUSTERS})
    silent: frozenset[str] = frozenset()  # clusters whose sidecars are too old to tell

    def origin(self, cluster: str, name: str) -> tuple[str, ...]:
        topic = self.topics[cluster][name]
        if not topic.upstream:
            return ()
        return (UNKNOWN,) if cluster in self.silent else told(tell(topic.upstream, topic.upstream[-1]))

    def follow(self, way: Way) -> int:
        made = 0
        for name, topic in list(self.topics[way.source].items()):
            taken = way.prefix + name
            if taken in self.topics[way.target]:
                continue
            origin = self.origin(way.source, name)
            refused = refusal(name, origin, way.source, way.target)
            comes_back = way.target in topic.passed
            assert refused or not comes_back, (way, name, topic)
            assert comes_back or UNKNOWN in origin or not refused, (refused, topic)
            if refused is None:
                passed = topic.passed | {way.source}
                self.topics[way.target][taken] = Topic((*origin, way.source), passed)
                made += 1
        return made

    def settle(self, ways: list[Way]) -> None:
        """Until nothing is made any more; the simple ways through four clusters are few."""
        for _ in range(len(CLUSTERS) + 1):
            if not sum(self.follow(way) for way in ways):
                return
        raise AssertionError("mirrors of mirrors are made for ever")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_whatever_link_closes_the_ring_is_the_one_that_is_refused(size: int) -> None:
    ring = [Way(CLUSTERS[at], CLUSTERS[(at + 1) % size], f"{CLUSTERS[at].lower()}.") for at in range(size)]
    for order in itertools.permutations(ring):
        world = World()
        for cluster in CLUSTERS[:size]:
            world.topics[cluster]["t"] = Topic()
        for count in range(1, size + 1):
            world.settle(list(order[:count]))
        # Each topic came round to every cluster once, and never back.
        assert sum(map(len, world.topics.values())) == size * size


ways = st.sampled_from(
    [
        Way(source, target, prefix)
        for source, target in itertools.permutations(CLUSTERS, 2)
        for prefix in ("", f"{source.lower()}.", "x.")
    ]
)
steps = st.one_of(
    st.tuples(st.just("make"), st.sampled_from(CLUSTERS), st.sampled_from("tuv")),
    st.tuples(st.just("link"), ways),
    st.tuples(st.just("follow"), st.integers(0, 7)),
    st.tuples(st.just("promote"), st.sampled_from(CLUSTERS), st.integers(0, 7)),
    st.tuples(st.just("delete"), st.sampled_from(CLUSTERS), st.integers(0, 7)),
)


@settings(max_examples=400)
@given(st.lists(steps, max_size=40), st.frozensets(st.sampled_from(CLUSTERS), max_size=1))
def test_no_ring_is_formed_and_nothing_else_is_refused(
    script: list[tuple[object, ...]], silent: frozenset[str]
) -> None:
    world, links = World(silent=silent), list[Way]()
    for what, *about in script:
        match what, *about:
            case "make", str(cluster), str(name):
                world.topics[cluster].setdefault(name, Topic())
            case "link", Way() as way:
                links.append(way)
            case "follow", int(number) if links:
                world.follow(links[number % len(links)])
            case (("promote" | "delete"), str(cluster), int(number)) if world.topics[cluster]:
                name = sorted(world.topics[cluster])[number % len(world.topics[cluster])]
                if what == "promote":
                    world.topics[cluster][name] = Topic()  # the cluster's own from now on
                else:
                    del world.topics[cluster][name]
    world.settle(links)


@pytest.mark.parametrize("value", ["", "a,,b", "a b", "x" * 300, "a\x00", ",".join("ab" * 40)])
def test_what_cannot_be_a_way_is_refused(value: str) -> None:
    with pytest.raises(Refused):
        told(value)


def test_an_older_state_says_that_it_does_not_know() -> None:
    assert told(tell((), "B")) == (UNKNOWN, "B")
    assert "nobody tells" in str(refusal("t", (UNKNOWN, "B"), "C", "A"))
    assert "comes from this cluster (A -> B -> C)" in str(refusal("t", ("A", "B"), "C", "A"))
