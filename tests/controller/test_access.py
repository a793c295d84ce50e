"""Kafka's authorizer, the ACLs that a link carries, who lacks what, and quotas: pure questions."""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest

from controller.access.acls import Acl, AclSet, Resource, allowed
from controller.access.carry import AclPlan, AclRules, PrincipalRule, plan, select
from controller.access.lacking import lacking
from controller.access.quotas import Entity, compare, missing_users
from controller.access.renamed import under_prefix


def acl(
    principal: str,
    operation: str,
    name: str,
    *,
    kind: str = "TOPIC",
    pattern: str = "LITERAL",
    permission: str = "ALLOW",
    host: str = "*",
) -> Acl:
    return Acl(Resource(kind, pattern, name), f"User:{principal}", host, operation, permission)


@pytest.mark.parametrize(
    ("acls", "operation", "host", "may"),
    [
        ([acl("a", "READ", "t")], "READ", "*", True),
        ([acl("a", "READ", "t")], "WRITE", "*", False),
        ([acl("a", "READ", "t")], "DESCRIBE", "*", True),
        ([acl("a", "ALL", "t")], "WRITE", "*", True),
        ([acl("*", "READ", "t")], "READ", "*", True),
        ([acl("b", "READ", "t")], "READ", "*", False),
        ([acl("a", "READ", "t", host="10.0.0.1")], "READ", "*", False),
        ([acl("a", "READ", "t", host="10.0.0.1")], "READ", "10.0.0.1", True),
        ([acl("a", "READ", "t"), acl("a", "READ", "*", permission="DENY")], "READ", "*", False),
        ([acl("a", "READ", "t"), acl("*", "ALL", "t", permission="DENY")], "READ", "*", False),
        # A DENY of READ says nothing of DESCRIBE, which READ would give.
        ([acl("a", "DESCRIBE", "t"), acl("a", "READ", "t", permission="DENY")], "DESCRIBE", "*", True),
    ],
)
def test_the_answers_of_kafkas_authorizer(acls: list[Acl], operation: str, host: str, may: bool) -> None:
    assert allowed(acls, "User:a", operation, host) is may


def test_literal_prefixed_and_all_resources() -> None:
    acls = AclSet(
        [acl("a", "READ", "or", pattern="PREFIXED"), acl("b", "READ", "*"), acl("c", "READ", "orders")]
    )
    assert {one.principal for one in acls.about("TOPIC", "orders")} == {"User:a", "User:b", "User:c"}
    assert {one.principal for one in acls.about("TOPIC", "o")} == {"User:b"}
    assert not list(acls.about("GROUP", "orders"))


SOURCE = [
    acl("writer", "WRITE", "orders"),
    acl("reader", "READ", "or", pattern="PREFIXED"),
    acl("reader", "READ", "billing", kind="GROUP"),
    acl("writer", "WRITE", "tx-", kind="TRANSACTIONAL_ID", pattern="PREFIXED"),
    acl("stranger", "READ", "other"),
    acl("stranger", "READ", "billing", kind="GROUP"),
    acl("reader", "ALTER", "kafka-cluster", kind="CLUSTER"),
    acl("reader", "READ", "orders", permission="DENY", host="10.0.0.1"),
]


def test_acls_of_mirrored_topics_and_of_their_principals_are_carried() -> None:
    found = select(AclSet(SOURCE), AclRules(), {"orders"}, {"orders", "orphan"})
    assert found.wanted == {SOURCE[0], SOURCE[1], SOURCE[2], SOURCE[3], SOURCE[7]}
    assert found.principals == {"User:reader": "User:reader", "User:writer": "User:writer"}
    assert found.wide == (SOURCE[1],)  # it reaches `orphan`, which is no mirror
    assert select(AclSet(SOURCE), AclRules(), set()).wanted == set()


def test_filters() -> None:
    everything = AclSet([*SOURCE, acl("*", "IDEMPOTENT_WRITE", "kafka-cluster", kind="CLUSTER")])
    for rules, expected in (
        (AclRules(kinds=frozenset({"TOPIC"})), {SOURCE[0], SOURCE[1], SOURCE[7]}),
        (AclRules(principals=(re.compile("User:w.*"),)), {SOURCE[0], SOURCE[3]}),
        (AclRules(principals_not=(re.compile("User:reader"),)), {SOURCE[0], SOURCE[3]}),
        (AclRules(operations=frozenset({"WRITE"})), {SOURCE[0], SOURCE[3]}),
        (AclRules(names_not=(re.compile("or|orders"),)), set()),
        (AclRules(names=(re.compile("or|tx-"),)), {SOURCE[1], SOURCE[7]}),  # a DENY of what is carried
    ):
        assert select(everything, rules, {"orders"}).wanted == expected, rules
    cluster = AclRules(kinds=frozenset({"TOPIC", "CLUSTER"}))
    assert {one.operation for one in select(everything, cluster, {"orders"}).wanted} >= {"IDEMPOTENT_WRITE"}
    assert "ALTER" not in {one.operation for one in select(everything, cluster, {"orders"}).wanted}


def test_principals_are_mapped_and_two_never_become_one() -> None:
    rule = PrincipalRule(re.compile("User:CN=([^,]+),.*"), r"User:\1")
    source = AclSet([acl("CN=a,O=x", "READ", "t"), acl("b", "READ", "t"), acl("*", "READ", "t")])
    found = select(source, AclRules(mapping=(rule,)), {"t"})
    assert {one.principal for one in found.wanted} == {"User:a", "User:b", "User:*"}
    clash = select(
        AclSet([acl("CN=a,O=x", "READ", "t"), acl("a", "WRITE", "t"), acl("b", "READ", "t")]),
        AclRules(mapping=(rule,)),
        {"t"},
    )
    assert {one.principal for one in clash.wanted} == {"User:b"}
    assert {one.acl.principal for one in clash.left_out} == {"User:CN=a,O=x", "User:a"}
    assert "each would get the others' rights" in clash.left_out[0].reason
    nobody = AclRules(mapping=(PrincipalRule(re.compile("User:b"), "b"),))
    [left] = select(AclSet([acl("b", "READ", "t")]), nobody, {"t"}).left_out
    assert "is no principal" in left.reason


def test_a_denial_comes_along_whatever_the_filters_say() -> None:
    allow = acl("etl", "READ", "orders")
    rules = AclRules(
        principals=(re.compile("User:etl"),),
        names=(re.compile("orders"),),
        operations=frozenset({"READ"}),
    )
    for deny in (
        acl("etl", "ALL", "or", pattern="PREFIXED", permission="DENY"),
        acl("*", "READ", "*", permission="DENY"),
        acl("etl", "DESCRIBE", "orders", permission="DENY", host="10.0.0.1"),
    ):
        assert select(AclSet([allow, deny]), rules, {"orders"}).wanted == {allow, deny}
    for other in (
        acl("other", "READ", "orders", permission="DENY"),
        acl("etl", "READ", "billing", permission="DENY"),
        acl("etl", "READ", "ox", pattern="PREFIXED", permission="DENY"),
    ):
        assert select(AclSet([allow, other]), rules, {"orders"}).wanted == {allow}


def test_an_acl_that_cannot_be_noted_is_named_and_takes_its_allows_along() -> None:
    allow, group = acl("a", "READ", "t"), acl("a", "READ", "g" * 300, kind="GROUP")
    denial = acl("a", "ALL", "g" * 299, kind="GROUP", pattern="PREFIXED", permission="DENY")
    other = acl("a", "READ", "g" * 20, kind="GROUP")
    found = select(AclSet([allow, group, other]), AclRules(), {"t"})
    assert found.wanted == {allow, other}
    assert "has 300 bytes" in found.left_out[0].reason
    wide = acl("a", "READ", "g", kind="GROUP", pattern="PREFIXED")
    found = select(AclSet([allow, denial, wide, other]), AclRules(), {"t"})
    assert found.wanted == {allow, other}
    assert "restricts it and cannot be carried" in {one.acl: one.reason for one in found.left_out}[wide]


def planned(
    source: list[Acl], target: list[Acl], carried: list[Acl], topics: set[str], left: Collection[str] = ()
) -> AclPlan:
    chosen = select(AclSet(source), AclRules(), topics)
    return plan(chosen, AclSet(target), carried, mirrored=topics, left=left)


def test_what_was_there_before_is_never_removed() -> None:
    ours, theirs = acl("a", "READ", "t"), acl("b", "READ", "t")
    found = planned([], [ours, theirs], [ours], {"t"})
    assert (found.add, found.remove, found.forget) == ((), (ours,), ())
    # Somebody removed it already.
    assert planned([], [theirs], [ours], {"t"}).forget == (ours,)
    # The source has it and the target had it: nothing is noted, so its end at the source changes nothing.
    there = planned([theirs], [theirs], [], {"t"})
    assert (there.add, there.remove, there.forget, there.present) == ((), (), (), 1)


def test_nobody_is_let_in_before_he_is_kept_out() -> None:
    allow, deny = acl("a", "READ", "t"), acl("a", "ALL", "t", permission="DENY", host="10.0.0.1")
    assert planned([allow, deny], [], [], {"t"}).add == (deny, allow)
    assert planned([], [allow, deny], [allow, deny], {"t"}).remove == (allow, deny)


def test_acls_of_promoted_topics_stay() -> None:
    of_t, of_u = acl("a", "READ", "t"), acl("a", "READ", "u")
    group = acl("a", "READ", "g", kind="GROUP")
    # u was promoted: it is the target's, and its ACL the target's business.
    found = planned([of_t, group], [of_t, of_u, group], [of_t, of_u, group], {"t"}, {"u"})
    assert (found.remove, found.forget) == ((), (of_u,))
    # Its mirror was deleted with the topic.
    assert planned([of_t, group], [of_t, of_u, group], [of_t, of_u, group], {"t"}).remove == (of_u,)
    # The last one was promoted: everything stays, and nothing is the link's any more.
    last = planned([], [of_t, of_u, group], [of_t, of_u, group], set(), {"t", "u"})
    assert (last.add, last.remove, set(last.forget)) == ((), (), {of_t, of_u, group})


def test_who_may_at_the_source_and_not_at_the_target() -> None:
    target = AclSet([acl("writer", "WRITE", "orders"), acl("r2", "READ", "orders")])
    found = lacking(
        AclSet(SOURCE),
        target,
        ["orders"],
        ["billing"],
        lambda one: one.replace("reader", "r2"),
    )
    assert [(one.who, one.right) for one in found] == [
        ("User:reader (User:r2 at the target)", "READ on group billing"),
        ("User:writer", "WRITE on transactional id tx-"),
    ]
    assert lacking(AclSet(SOURCE), AclSet(SOURCE), ["orders"], ["billing"], str) == []


def test_a_deny_at_the_target_is_a_lack() -> None:
    source = AclSet([acl("a", "READ", "t")])
    target = AclSet([acl("a", "READ", "t"), acl("*", "READ", "*", permission="DENY")])
    [one] = lacking(source, target, ["t"], [], str)
    assert (one.principal, one.operation, one.names) == ("User:a", "READ", ("t",))


def test_quotas_of_the_links_clients_are_copied_and_never_changed() -> None:
    alice, default = Entity((("user", "alice"),)), Entity((("user", None),))
    stranger, client = Entity((("user", "mallory"),)), Entity((("client-id", "etl"),))
    address = Entity((("ip", "10.0.0.1"),))
    source = {
        alice: {"producer_byte_rate": 100.0, "consumer_byte_rate": 5.0},
        default: {"producer_byte_rate": 1.0},
        stranger: {"producer_byte_rate": 7.0},
        client: {"consumer_byte_rate": 9.0},
        address: {"connection_creation_rate": 3.0},
    }
    mapped = Entity((("user", "a2"),))
    found = compare(source, {mapped: {"producer_byte_rate": 50.0}}, {"User:alice": "User:a2"})
    assert found.add == {mapped: {"consumer_byte_rate": 5.0}, client: {"consumer_byte_rate": 9.0}}
    assert found.differ == ((mapped, "producer_byte_rate", 100.0, 50.0),)
    assert {entity for entity, _, _ in found.not_copied} == {default, address}


def test_scram_users_that_cannot_log_in() -> None:
    source = {
        "alice": ["SCRAM-SHA-256", "SCRAM-SHA-512"],
        "bob": ["SCRAM-SHA-256"],
        "mallory": ["SCRAM-SHA-256"],
    }
    found = missing_users(source, {"alice": ["SCRAM-SHA-512"]}, ["User:alice", "User:bob", "User:*"], str)
    assert [(one.user, one.mechanisms) for one in found] == [
        ("alice", ("SCRAM-SHA-256",)),
        ("bob", ("SCRAM-SHA-256",)),
    ]


def test_under_a_prefix_readers_are_carried_and_nothing_else() -> None:
    source = [
        acl("a", "READ", "orders"),
        acl("a", "WRITE", "orders"),
        acl("b", "ALL", "or", pattern="PREFIXED"),
        acl("b", "WRITE", "orders", permission="DENY"),
        acl("c", "DESCRIBE", "*"),
        acl("c", "ALTER_CONFIGS", "*"),
        acl("a", "READ", "readers", kind="GROUP"),
        acl("a", "WRITE", "tx", kind="TRANSACTIONAL_ID"),
    ]
    renamed = set(under_prefix(source, "east."))
    assert renamed == {
        acl("a", "READ", "east.orders"),
        acl("b", "READ", "east.or", pattern="PREFIXED"),
        acl("b", "DESCRIBE", "east.or", pattern="PREFIXED"),
        acl("b", "WRITE", "east.orders", permission="DENY"),
        acl("c", "DESCRIBE", "east.", pattern="PREFIXED"),
    }
    assert list(under_prefix(source, "")) == source
    rules = AclRules(names=(re.compile("orders"),), prefix="east.")
    assert acl("a", "READ", "east.orders") in select(AclSet(renamed), rules, ["east.orders"]).wanted
