"""Follows the state topic: the tree as every process of the fleet knows it, and signs of life.

Non-obvious:
- Silence is only counted while the topic can be read. After a gap the count begins anew, else the end of an
  outage would look like the death of the link controller, and all would take its seat at once.
- A reader that was away longer than tombstones are kept (delete.retention.ms) could miss a deletion: it
  begins again at the start of the topic.
- A loss of records already read (topic deleted, cut, or an unclean election) is not survived: the true state is
  unknown then. Every use of the store fails with CorruptState until the process is started again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from controller.errors import ControllerError, CorruptState
from fleet.stores.base import StoreError
from fleet.stores.topic.brokers import RIGHTS, StateTopicBrokers
from fleet.stores.topic.records import Aborted, Replay
from wire.backoff import Backoff
from wire.errors import BrokerError, WireError, error_is_retriable
from wire.frames.types import ZERO_TOPIC_ID, TopicId

log = logging.getLogger(__name__)

FETCH_WAIT_MS = 250
FETCH_BYTES = 1 << 20
OUTAGE = 2.0
"""Seconds without an answered fetch after which silence is counted anew."""
START_AGAIN_AFTER = 3600.0
"""Seconds without having been at the end; far below the topic's delete.retention.ms."""
_PAUSE = 0.2
_FETCH_VERSION = 12  # the last one by name; v12 has LastFetchedEpoch
_READ_COMMITTED = 1
_UNKNOWN_TOPIC, _OUT_OF_RANGE = 3, 1


class TopicTail:
    """Reads from the start of the topic; `run` until cancelled."""

    def __init__(self, brokers: StateTopicBrokers, topic_id: TopicId) -> None:
        self.replay = Replay(brokers.topic)
        self.failed: ControllerError | None = None
        self.undecided = False  # a transaction was open when the end was last read
        self.trouble = "not read yet"  # why the topic cannot be read now, for people
        self._brokers = brokers
        self._topic_id = topic_id
        self._changed = asyncio.Event()
        # Being read from the start, to take the place of `replay` at the end.
        self._anew: Replay | None = None
        self._at_end_since_start = False
        self._answered = self._last_end = _now()
        self._sign_of_life = _now()
        self._end_started = -1.0  # when the last fetch was sent that ended at the end of the log

    # --- what is known --------------------------------------------------------------------------------------

    @property
    def silence(self) -> float:
        """Seconds of readable time since the last commit of anybody."""
        return self._answered - self._sign_of_life

    def check(self) -> None:
        """Raise the error that makes the tree unusable."""
        if self.failed is not None:
            raise self.failed
        if self.replay.bad:
            raise next(iter(self.replay.bad.values()))

    async def changed(self, timeout: float) -> None:
        """Wait for news (any answered fetch), at most `timeout` seconds."""
        event = self._changed
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            pass

    async def at_end(self, deadline: float) -> None:
        """Wait until everything that was committed before this call has been read."""
        began = _now()
        while self._end_started < began:
            await self._wait(deadline)

    async def decided(self, timeout: float) -> None:
        """Wait for open transactions, at most `timeout` seconds: a commit is answered before its marker is
        written, so what was just committed may look open for some milliseconds; what a dead process left is
        open until it is fenced.
        """
        deadline = time.monotonic() + timeout
        while self.undecided and (left := deadline - time.monotonic()) > 0:
            await self.changed(left)

    async def reach(self, offset: int, deadline: float) -> None:
        """Wait until the record at this offset, and all before it, have been read."""
        while self.replay.position <= offset:
            await self._wait(deadline)

    async def _wait(self, deadline: float) -> None:
        if self.failed is not None:
            raise self.failed
        left = deadline - time.monotonic()
        if left <= 0:
            raise StoreError(
                f"the state topic {self._brokers.topic} could not be read to its end in time"
                + (f": {self.trouble}" if self.trouble else "")
            )
        await self.changed(left)

    # --- reading --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ends by itself only when the topic's content is lost; `failed` says why."""
        backoff = Backoff(_PAUSE, 1.0)
        while self.failed is None:
            try:
                await self._fetch()
                self.trouble = ""
                backoff.reset()
                continue
            except ControllerError as error:
                if isinstance(error, CorruptState):
                    self.failed = error
                trouble = str(error)
            except WireError as error:
                trouble = str(error)
            except Exception as error:
                log.exception("reading the state topic %s failed by a bug", self._brokers.topic)
                trouble = f"internal error: {error!r}; see the log"
            if trouble != self.trouble:
                log.warning("the state topic %s cannot be read: %s", self._brokers.topic, trouble)
                self.trouble = trouble
            self._brokers.forget_leader()
            self._notify()
            await asyncio.sleep(backoff.next())

    async def _fetch(self) -> None:
        sent = _now()
        if self._at_end_since_start and self._anew is None and sent - self._last_end > START_AGAIN_AFTER:
            log.warning("the state topic %s is read from its start again", self._brokers.topic)
            self._anew = Replay(self._brokers.topic)
        replay = self._anew or self.replay
        deadline = time.monotonic() + 10.0
        address = await self._leader(deadline)
        answer = await self._brokers.ask(
            address,
            "fetch",
            self._request(replay),
            deadline,
            max_version=_FETCH_VERSION,
            purpose="tail",
        )
        partition = self._partition(answer, replay)
        before = replay.commits
        if partition.log_start_offset > replay.position:
            raise CorruptState(
                f"topic {replay.name}: the records before {partition.log_start_offset} are lost"
            )
        replay.feed(
            bytes(partition.records or b""),
            [Aborted(one.producer_id, one.first_offset) for one in partition.aborted_transactions or ()],
            partition.last_stable_offset,
        )
        now = _now()
        if replay.commits != before or now - self._answered > OUTAGE:
            self._sign_of_life = now
        self._answered = now
        if replay.position >= partition.last_stable_offset:
            self._last_end, self._end_started = now, sent
            self.undecided = partition.high_watermark > partition.last_stable_offset
            self._at_end_since_start = True
            self.replay, self._anew = replay, None
        self._notify()

    async def _leader(self, deadline: float) -> tuple[str, int]:
        if not self._brokers.leader_known:
            found = await self._brokers.metadata(deadline)
            if found is None:
                raise BrokerError(_UNKNOWN_TOPIC, api="metadata", message=self._brokers.topic)
            if ZERO_TOPIC_ID not in (found.topic_id, self._topic_id) and found.topic_id != self._topic_id:
                raise CorruptState(
                    f"topic {self._brokers.topic} was deleted and created again: its state is lost"
                )
        return await self._brokers.leader(deadline)

    def _request(self, replay: Replay) -> dict[str, object]:
        return {
            "max_wait_ms": FETCH_WAIT_MS if self._at_end_since_start and self._anew is None else 0,
            "min_bytes": 1,
            "max_bytes": FETCH_BYTES,
            "isolation_level": _READ_COMMITTED,
            "topics": [
                {
                    "topic": replay.name,
                    "partitions": [
                        {
                            "partition": 0,
                            "fetch_offset": replay.position,
                            "last_fetched_epoch": replay.leader_epoch,
                            "partition_max_bytes": FETCH_BYTES,
                        }
                    ],
                }
            ],
            "forgotten_topics_data": (),
        }

    def _partition(self, answer: Any, replay: Replay) -> Any:
        code = int(getattr(answer, "error_code", 0))
        if code == 0:
            (topic,) = answer.responses
            (partition,) = topic.partitions
            code = int(partition.error_code)
        if code == _OUT_OF_RANGE:
            raise CorruptState(
                f"topic {self._brokers.topic}: offset {replay.position} is not there any more; records were lost"
            )
        if code in RIGHTS or (code and not error_is_retriable(code)):
            raise self._brokers.refused(code, "fetch")
        if code:
            raise BrokerError(code, api="fetch")
        diverging = getattr(partition, "diverging_epoch", None)
        if diverging is not None and diverging.epoch >= 0:
            raise CorruptState(
                f"topic {self._brokers.topic} was cut back to offset {diverging.end_offset}; records were lost"
            )
        return partition

    def _notify(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()


def _now() -> float:
    """Seconds; goes on while the machine sleeps, which time.monotonic() does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
