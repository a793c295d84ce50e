"""Reading a link file: everything that is wrong with one is one line with its place, and never a secret."""

from __future__ import annotations

import time

import pytest

from linker.cli.link_file import MAX_FILE_BYTES, LinkFileError, parse_links

HEAD = "links:\n- name: east\n  properties:\n    bootstrap.servers: one:9092\n"


def refusal(text: str) -> str:
    with pytest.raises(LinkFileError) as refused:
        parse_links(text)
    line = str(refused.value)
    assert line.isprintable() and len(line) < 600, line
    return line


def test_names_and_entries_of_mirrors() -> None:
    file = parse_links(
        HEAD
        + """\
    ssl.endpoint.identification.algorithm:
  options:
    fetchers_per_node: 3
    groups_include: 'a.*,b{1,2}'
  mirrors:
  - orders
  - 007
  - topic: payments
    start: 2026-01-31T12:00:00Z
    replication_factor: 2
    configs_from_target: [retention.ms, min.insync.replicas]
- name: west
  properties: {bootstrap.servers: 'two:9092'}
  mirrors:
  options:
"""
    )
    east, west = file.links
    assert east.properties["ssl.endpoint.identification.algorithm"] == ""
    assert (east.options.fetchers_per_node, east.options.groups_include) == (3, "a.*,b{1,2}")
    assert [one.topic for one in east.mirrors] == ["orders", "007", "payments"]
    assert east.mirrors[0].plain
    assert east.mirrors[2].settings() == {
        "start": "1769860800000",
        "replication_factor": 2,
        "configs_from_target": ["min.insync.replicas", "retention.ms"],
    }
    assert west.mirrors == [] and west.options.groups_include == ".*"


WRONG = {
    "links:\n- nam: east\n": "line 2: links.0.nam: unknown key; did you mean name?",
    "linx: []\n": "line 1: linx: unknown key; did you mean links?",
    HEAD + "  options:\n    groups_inclde: x\n": (
        "line 6: links.east.options.groups_inclde: unknown key; did you mean groups_include?"
    ),
    HEAD + "  mirrors:\n  - a\n  - topic: orders\n    strat: latest\n": (
        "line 8: links.east.mirrors.orders.strat: unknown key; did you mean start?"
    ),
    HEAD + "    sasl.usernam: x\n": (
        "line 5: links.east.properties.sasl.usernam: unknown property; did you mean sasl.username?"
    ),
    HEAD + "  options: {fetchers_per_node: many}\n": (
        "line 5: links.east.options.fetchers_per_node: Input should be a valid integer, unable to parse string as an integer"
    ),
    HEAD + "  options:\n    groups_include: '('\n": (
        "line 6: links.east.options.groups_include: in '(' a ( has no partner: expressions are separated by commas outside "
        "{}, [] and (), and a bracket that stands for itself is written \\("
    ),
    HEAD + "  options: {groups_include: }\n": (
        "line 5: links.east.options.groups_include: Input should be a valid string"
    ),
    HEAD + "  mirrors: orders\n": "line 5: links.east.mirrors: Input should be a valid list",
    HEAD + "  mirrors: [or ders]\n": (
        "line 5: links.east.mirrors.or ders.topic: String should match pattern '^[a-zA-Z0-9._-]{1,249}$'"
    ),
    HEAD + "  mirrors:\n  - orders\n  - orders\n": (
        "line 7: links.east.mirrors.orders: topic orders is in link east already"
    ),
    HEAD + "  mirrors:\n  - topic: orders\n    start: yesterday\n": (
        "line 7: links.east.mirrors.orders.start: yesterday: give earliest, latest, epoch milliseconds or "
        "2026-01-31T12:00:00Z"
    ),
    HEAD + HEAD[7:]: "line 5: links.east.name: link east is in the file twice",
    HEAD + "    sasl.password: hunter2\n": (
        "line 5: links.east.properties.sasl.password: sasl.password holds a secret in clear; give it by reference: "
        "${file:/path} or ${env:NAME}"
    ),
    "links:\n- name: east\n": "line 2: links.east.properties: is missing",
    "links:\n- name: east\n  properties: {client.id: x}\n": (
        "line 3: links.east.properties: bootstrap.servers is missing"
    ),
    "": "links: is missing",
    "- a\n- b\n": "no link file: it holds a list of links below the key links",
    "hello\n": "no link file: it holds a list of links below the key links",
    "links:\n\t- name: a\n": ("line 2: not valid YAML: found character '\\t' that cannot start any token"),
    "links: []\nlinks: []\n": "line 2: key links is given twice",
    "links:\n- name: a\n  name: b\n": "line 3: key name is given twice",
    "links: []\n---\nlinks: []\n": "line 2: not valid YAML: but found another document",
    "links: &a [1]\nmore: *a\n": "line 2: *a: aliases are not taken",
    "links: !!python/object:os.system {}\n": (
        "line 1: the tag tag:yaml.org,2002:python/object:os.system is not taken"
    ),
    "links: {[a]: b}\n": "line 1: a key must be plain text",
    "links: \x07\n": "not valid YAML: unacceptable character #x0007: special characters are not allowed",
    "[" * 100_000: "not valid YAML: nested too deep",
    "a: {" * 5_000: "not valid YAML: nested too deep",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[-40:])
def test_one_line_with_its_place(text: str) -> None:
    line = refusal(text)
    assert line == WRONG[text]
    assert "hunter2" not in line


def test_a_bomb_of_aliases_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    began = time.monotonic()
    assert refusal("\n".join(lines)) == "line 2: *a0: aliases are not taken"
    assert time.monotonic() - began < 5


def test_a_huge_file_is_not_read_through() -> None:
    assert refusal("#" * (MAX_FILE_BYTES + 1)) == f"it is larger than {MAX_FILE_BYTES} bytes"
