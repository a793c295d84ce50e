"""Changes that members ask for: in order, notes together, and each one answered for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from controller.operations import Operation
from controller.phases import Phase
from fleet import messages as m
from tests.controller.fleet_kit import LINK, Caller, TroubledStore, running_head, with_mirror
from tests.controller.virtual_loop import run_virtual
from wire.frames.types import TopicPartition


class _Counting(TroubledStore):
    commits = 0

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        self.commits += 1
        await super().commit(operations, controller_epoch=controller_epoch)


def _note(n: int, partition: int, what: m.What, *pairs: tuple[int, int]) -> m.Ask:
    return m.Ask(n=n, what=what, link=LINK, topic="t", partition=partition, pairs=list(pairs))


def test_notes_that_follow_each_other_are_one_commit_and_are_answered_one_by_one() -> None:
    async def main() -> None:
        store = _Counting()
        controller = await with_mirror(store, partitions=30)
        async with running_head(controller, store) as head:
            caller = Caller(head)
            await caller.join()
            store.delay = 0.05
            before = store.commits
            caller.say(_note(0, 0, "source_epochs", (1, 0)))  # the others come while it is written
            await asyncio.sleep(0.01)
            for partition in range(1, 20):
                caller.say(_note(partition, partition, "untruncated", (2, 7)))
                caller.say(_note(100 + partition, partition, "source_epochs", (1, 0), (3, 9)))
            caller.say(_note(50, 20, "source_epochs", (3, 0), (3, 9)))  # refused: its epochs do not ascend
            caller.say(_note(51, 99, "source_epochs", (1, 0)))  # there is no such partition
            await asyncio.sleep(1)
            answers = {one.n: one.error for one in await caller.heard() if isinstance(one, m.Answer)}
            assert store.commits - before == 2
            assert {n: error[0] for n, error in answers.items() if error} == {50: "Refused", 51: "NotFound"}
            assert len(answers) == 1 + 2 * 19 + 2
            for partition in range(1, 20):
                state = controller.image.partitions[LINK, TopicPartition("t", partition)]
                assert (state.untruncated, state.source_epochs) == (((2, 7),), ((1, 0), (3, 9)))

    run_virtual(main())


def test_a_failure_waits_for_the_notes_before_it() -> None:
    async def main() -> None:
        store = _Counting()
        controller = await with_mirror(store, partitions=2)
        async with running_head(controller, store) as head:
            caller = Caller(head)
            await caller.join()
            caller.say(_note(1, 0, "source_epochs", (1, 0)))
            caller.say(m.Ask(n=2, what="fail_partition", link=LINK, topic="t", partition=0, reason="gone"))
            caller.say(_note(3, 1, "source_epochs", (4, 0)))
            await asyncio.sleep(1)
            answers = [one.n for one in await caller.heard() if isinstance(one, m.Answer)]
            assert answers == [1, 2, 3]
            states = controller.image.partitions
            first, second = (states[LINK, TopicPartition("t", index)] for index in range(2))
            assert (first.phase, first.source_epochs) == (Phase.FAILED, ((1, 0),))
            assert second.source_epochs == ((4, 0),)

    run_virtual(main())
