"""The link controller as the rest of a sidecar sees it, local or elsewhere.

While this sidecar is the link controller, all calls go to its own `StoredController`. Otherwise the image is a copy
that follows the deltas, and only changes whose reason a sidecar knows are passed on: a failure, the source's epochs,
truncations that are owed. All others are refused with the link controller's address.

Listeners are called for every change of either image, and for every change of role (without records: anything may
differ).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from controller.access.acls import Resource
from controller.decide.mirrors import CopyNote
from controller.errors import ControllerError
from controller.image import ControllerImage, Stamp
from controller.operations import Versioned
from controller.state import (
    Record,
    Removal,
    RemoveCarriedAcls,
    RemoveGroup,
    RemoveLink,
    RemoveMirror,
    RemovePromoteJob,
    RemoveSidecar,
)
from fleet.link_controller import LinkController, wall_clock_ms
from fleet.messages import Ask, Delta, Welcome, What
from fleet.stored_controller import StoredController
from fleet.stores.base import Seat
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.together import together

T = TypeVar("T")

MOST_UNANSWERED = 500  # changes that a sidecar waits for at a time, of all its links


class NotTheController(ControllerError):
    """Another sidecar is the link controller, or none is at the moment."""

    def __init__(self, seat: Seat | None) -> None:
        where = "no sidecar is the link controller at the moment; try again in a few seconds"
        if seat is not None:
            where = f"sidecar {seat.holder.broker_id} is the link controller (admin API {seat.holder.admin})"
        super().__init__(where)
        self.seat = seat


class AskController(Protocol):
    async def __call__(self, ask: Ask) -> None:
        """Have the link controller write it; raises its error, or LinkerError if it could not be asked."""
        ...


class SharedController(LinkController):
    """One per process, for its whole life."""

    def __init__(self, now: Callable[[], int] = wall_clock_ms) -> None:
        super().__init__(now)
        self._stored: StoredController | None = None
        self._copy = ControllerImage()
        self._loaded = False
        #: The newest that this process knows of; told by the runner.
        self.seat: Seat | None = None
        self.ask: AskController | None = None
        #: The link controller ends a connection on which more wait than it may hold (`roster`).
        self._turns = asyncio.Semaphore(MOST_UNANSWERED)

    @property
    def image(self) -> ControllerImage:
        return self._copy if self._stored is None else self._stored.image

    @property
    def controller_epoch(self) -> int:
        return self.image.stamp.controller_epoch

    @property
    def is_controller(self) -> bool:
        return self._stored is not None

    @property
    def loaded(self) -> bool:
        """Whether there is an image at all; before that nothing can be served."""
        return self._loaded

    # Roles.

    def become_controller(self, controller: StoredController) -> None:
        self._stored = controller
        self._loaded = True
        controller.listeners.add(self._tell)
        self._tell(())

    def cease_controller(self) -> None:
        """The image stays, as a copy without a writer, until a link controller sends its own."""
        if self._stored is None:
            return
        self._stored.listeners.discard(self._tell)
        self._copy = self._stored.image
        self._stored = None
        self._tell(())

    def welcomed(self, welcome: Welcome) -> None:
        """A link controller's image. CorruptState if this program cannot read it."""
        if welcome.image is not None:
            self._load(welcome.image, welcome.controller_epoch)

    def apply(self, delta: Delta) -> None:
        """The commits of the link controller; CorruptState if this program cannot read them."""
        if self._stored is not None:
            return
        if delta.reset:
            self._load(delta.put, delta.controller_epoch)
            return
        changed: list[Record] = []
        removed = [_removal(entry) for entry in delta.gone]
        if removed:
            self._copy.replay(removed)
            changed += removed
        for path, value, version in delta.put:
            entity = self._copy.take_over(path, Versioned(value, version))
            if entity is not None:
                changed.append(entity)
        self._copy.stamp = Stamp(delta.controller_epoch, self._copy.stamp.commits + 1)
        if changed:
            self._tell(changed)

    def _load(self, nodes: Iterable[tuple[str, object, int]], controller_epoch: int) -> None:
        if self._stored is not None:
            return
        loaded = {path: Versioned(value, version) for path, value, version in nodes}  # type: ignore[arg-type]
        self._copy = ControllerImage.load(loaded, controller_epoch)
        self._loaded = True
        self._tell(())

    # Changes.

    async def refresh(self) -> None:
        if self._stored is not None:
            await self._stored.refresh()

    async def prove_newest(self) -> None:
        if self._stored is None:
            raise NotTheController(self.seat)
        await self._stored.prove_newest()

    async def decide(
        self, decide: Callable[[ControllerImage], tuple[Sequence[Record], T]], dry_run: bool = False
    ) -> T:
        if self._stored is None:
            raise NotTheController(self.seat)
        return await self._stored.decide(decide, dry_run)

    async def fail_partition(self, link: str, tp: TopicPartition, reason: str) -> None:
        if self._stored is not None:
            await self._stored.fail_partition(link, tp, reason)
        else:
            await self._ask("fail_partition", link, tp, reason=reason)

    async def note_copies(
        self, link: str, notes: Mapping[TopicPartition, CopyNote]
    ) -> dict[TopicPartition, LinkerError]:
        if self._stored is not None:
            return await self._stored.note_copies(link, notes)
        asked = await together(self._ask_to_note(link, tp, note) for tp, note in notes.items())
        return {tp: error for tp, error in zip(notes, asked, strict=True) if error is not None}

    async def _ask_to_note(self, link: str, tp: TopicPartition, note: CopyNote) -> LinkerError | None:
        """Truncations first: without them the history is not written."""
        try:
            if note.untruncated is not None:
                await self._ask("untruncated", link, tp, pairs=note.untruncated)
            if note.source_epochs is not None:
                await self._ask("source_epochs", link, tp, pairs=note.source_epochs)
        except LinkerError as error:
            return error
        return None

    async def _ask(
        self,
        what: What,
        link: str,
        tp: TopicPartition,
        *,
        reason: str | None = None,
        pairs: Iterable[tuple[int, int]] = (),
    ) -> None:
        if self.ask is None:
            raise NotTheController(self.seat)
        chosen = [(int(first), int(second)) for first, second in pairs]
        async with self._turns:
            await self.ask(
                Ask(
                    n=0,
                    what=what,
                    link=link,
                    topic=tp.topic,
                    partition=tp.partition,
                    reason=reason,
                    pairs=chosen,
                )
            )


def removal_entry(record: Removal) -> list[str | int]:
    """As a Delta carries it."""
    match record:
        case RemoveLink():
            return ["link", record.link]
        case RemoveMirror():
            return ["mirror", record.link, record.topic]
        case RemovePromoteJob():
            return ["promote", record.link, record.id]
        case RemoveSidecar():
            return ["sidecar", record.broker_id]
        case RemoveGroup():
            return ["group", record.link, record.group]
        case RemoveCarriedAcls():
            return ["acls", record.link, *record.resource]


def _removal(entry: list[str | int]) -> Record:
    match entry:
        case ["link", str(link)]:
            return RemoveLink(link)
        case ["mirror", str(link), str(topic)]:
            return RemoveMirror(link, topic)
        case ["promote", str(link), int(number)]:
            return RemovePromoteJob(link, number)
        case ["sidecar", int(broker_id)]:
            return RemoveSidecar(broker_id)
        case ["group", str(link), str(group)]:
            return RemoveGroup(link, group)
        case ["acls", str(link), str(kind), str(pattern), str(name)]:
            return RemoveCarriedAcls(link, Resource(kind, pattern, name))
        case _:
            raise ControllerError(f"a removal that this program does not know: {entry}")
