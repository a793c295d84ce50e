"""The programs for Node.js: pinned packages, the lines that they share, and the Node.js that they need."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.build import PROGRAMS, Builder, CannotBuildError
from tests.clients.catalog import GROUPS, KAFKAJS, PRODUCERS, Library
from tests.clients.program import Transcript
from wire.frames.types import TopicPartition

NODE = shutil.which("node")
LIBRARIES = sorted(
    {case.library for case in (*PRODUCERS, *GROUPS) if case.library.kind == "node"}, key=lambda one: one.name
)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.name)
def test_packages_are_pinned_and_name_no_registry(library: Library) -> None:
    home = PROGRAMS / library.program
    wanted = json.loads((home / "package.json").read_text())["dependencies"]
    locked = json.loads((home / "package-lock.json").read_text())["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    installed = [one for path, one in locked.items() if path]
    assert all(one["integrity"].startswith("sha512-") for one in installed)
    assert not [one["resolved"] for one in installed if "resolved" in one]


@pytest.mark.skipif(NODE is None, reason="there is no Node.js on this machine")
def test_lines_are_read_as_those_of_any_program(tmp_path: Path) -> None:
    shutil.copy(PROGRAMS / "node" / "lines.mjs", tmp_path)
    (tmp_path / "main.mjs").write_text(
        """
        import { Program, offsets, sleep } from "./lines.mjs";
        const program = new Program();
        async function produce() {
          program.say("ready", { version: "1.2" });
          await sleep(30);
          const due = program.due();
          const known = offsets(due, [[0, 40n], [1, 70n]]);
          due.forEach(({ number }, at) => program.acked(number, known[at]));
          program.flush();
          program.records(1, due.filter(({ partition }) => partition === 1).map(({ value }) => [70n, value]));
          program.records(0, [[7, Buffer.from("somebody else's")]]);
          program.held("assigned", [0, 1]);
          program.failed([99], false, new AggregateError([new Error("first"), new Error("last")], "all"));
          await program.stopped;
          program.say("closed", { next: program.next });
        }
        program.run({ producer: produce });
        setInterval(() => {}, 1000); // a client's connections keep a program alive
        setTimeout(() => process.kill(process.pid, "SIGTERM"), 100);
        """
    )
    arguments = ["role=producer", "bootstrap=b:1", "name=n", "topic=t", "partitions=3", "first=3", "rate=200"]
    command = [str(NODE), str(tmp_path / "main.mjs"), *arguments]
    output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    said = Transcript("n", partitions=3, topic="t")
    for line in output.splitlines():
        said.feed(json.loads(line), "source", 1)
    assert (said.version, said.closed) == ("1.2", True)
    assert said.next == 3 + len(said.acks) >= 8
    known = {(ack.partition.partition, ack.sequence): ack.offset for ack in said.acks}
    assert {key: known[key] for key in ((0, 3), (1, 4), (2, 5), (0, 6))} == {
        (0, 3): 40,  # the first of its partition
        (1, 4): 70,
        (2, 5): None,  # the library did not tell
        (0, 6): 41,
    }
    mine, other = said.reads[0], said.reads[-1]
    assert (mine.partition, mine.offset, mine.producer, mine.number) == (TopicPartition("t", 1), 70, "n", 4)
    assert (other.offset, other.producer, other.number) == (7, None, -1)
    assert said.memberships[0].partitions == [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert said.unacked[0].error == "all [last]"


async def test_an_old_node_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own error would come when its program runs, and look like one of a broker."""
    for name in ("node", "npm"):
        (tmp_path / name).write_text("#!/bin/sh\necho v18.20.4\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(CannotBuildError, match=r"v18.20.4: install 20 or later"):
        await Builder(tmp_path / "built").command(KAFKAJS)
