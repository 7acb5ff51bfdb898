"""The redrive of one partition of a dead-letter topic."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from kpipe_platform.dead_letters.read.reader import read_dead_letter
from kpipe_platform.dead_letters.redrive.decide import Action, Decision, decide, kept
from kpipe_platform.dead_letters.redrive.options import RedriveOptions
from kpipe_platform.dead_letters.redrive.pace import Pace
from kpipe_platform.dead_letters.redrive.payloads import Payloads
from kpipe_platform.dead_letters.redrive.progress import ALWAYS_FIT, Progress
from kpipe_platform.dead_letters.redrive.results import PartitionResult, RedriveProgress, RedriveResult
from kpipe_platform.dead_letters.redrive.stored_offset import StoredOffset, read_stored_offset
from kpipe_platform.dead_letters.redrive.topics import RedriveTopics
from kpipe_platform.dead_letters.redrive.transaction import RedriveTransaction, RejectedError
from kpipe_platform.errors import NoStartOffsetError, TopicRecreatedError
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import OffsetRange, Watermarks, read_watermarks
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.kafka.read.reader import read_range

logger = logging.getLogger(__name__)

# Limits the pending records of a batch, including those that are not sent: they use only memory.
_MAX_PENDING = 10_000
# Limits the bytes of a transaction, so that a batch of large records takes only seconds to send.
_MAX_PENDING_BYTES = 16_000_000
_PROGRESS_EVERY = 500


@dataclass(frozen=True, slots=True)
class Shared:
    """Objects that all partitions of a redrive share; see `kpipe_platform.dead_letters.redrive.redrive.redrive`."""

    clients: Clients
    options: RedriveOptions
    topic_id: str
    topics: RedriveTopics
    payloads: Payloads
    pace: Pace
    result: RedriveResult
    on_progress: Callable[[RedriveProgress], None] | None
    on_decision: Callable[[Decision], None] | None
    clock: Callable[[], float]
    now_s: Callable[[], float]


@dataclass(frozen=True, slots=True)
class _Item:
    """A dead letter that was read, but whose outcome is not committed yet.

    Args:
        offset: Its offset.
        decision: What to do with it. None if an earlier redrive finished it, or the filter excludes it.
        is_done: Whether it counts as done once this batch is committed.
    """

    offset: int
    decision: Decision | None
    is_done: bool

    @property
    def record(self) -> KafkaRecord | None:
        """The record to send; None if there is none."""
        return None if self.decision is None else self.decision.record


class PartitionRedrive:
    """Redrives one partition, from the group's offset to a fixed end.

    Args:
        shared: Objects that all partitions share.
        partition: The partition.
        watermarks: Watermarks: the log start, and the offset to stop at.
    """

    def __init__(self, shared: Shared, partition: int, watermarks: Watermarks) -> None:
        self._shared, self._options = shared, shared.options
        self._partition, self._watermarks = partition, watermarks
        self._transaction: RedriveTransaction | None = None
        self._progress = Progress(watermarks.log_start)
        # Next offset to read after the records whose outcome is committed.
        self._position = watermarks.log_start
        self._pending: list[_Item] = []
        self._pending_records = self._pending_bytes = 0
        self._counts = PartitionResult(partition, watermarks.log_start, watermarks.end, watermarks.log_start)

    def run(self) -> None:
        """Redrive the partition and add its counts to the result."""
        with ExitStack() as stack:
            options = self._options
            if options.dry_run:
                clients, group = self._shared.clients, options.group_name
                stored = read_stored_offset(clients, group, options.topic, self._partition)
            else:
                self._transaction = stack.enter_context(self._new_transaction())
                stored = self._transaction.open()
            self._redrive(stored)

    def check(self) -> None:
        """Do the same as `run` without sending anything, to check that the progress will fit into the commit metadata.

        Raises:
            ConfigError: The progress would not fit.
        """
        if self._watermarks.end - self._watermarks.log_start <= ALWAYS_FIT:
            return
        # The open transaction of a killed redrive may block the offset. Taking over its transactional id aborts it.
        with self._new_transaction() as opened:
            stored = opened.open()
        self._redrive(stored)

    def _new_transaction(self) -> RedriveTransaction:
        return RedriveTransaction(
            self._shared.clients,
            self._options.group_name,
            self._options.topic,
            self._partition,
            timeout_s=self._options.transaction_timeout_s,
            clock=self._shared.clock,
        )

    def _redrive(self, stored: StoredOffset | None) -> None:
        self._begin(stored)
        self._shared.result.partitions.append(self._counts)
        if self._read(OffsetRange(self._options.topic, self._partition, self._position, self._watermarks.end)):
            # Commit even if nothing was sent, so that the brokers do not expire the group's offset.
            self._commit(self._pending, end=self._watermarks.end)
        self._report()

    def _begin(self, stored: StoredOffset | None) -> None:
        topic, group = self._options.topic, self._options.group_name
        where = f"{topic}/{self._partition}"
        ids = {"topic": topic, "partition": self._partition, "group": group}
        cli = f"kpipe offsets set {group} {topic} --partition {self._partition} --to earliest"
        if stored is None:
            if self._options.start == "error":
                msg = f'group {group} has no offset for {where}, and start="error" requires one'
                raise NoStartOffsetError(msg, fix=f"store a first offset: {cli} --new-group", **ids)
            logger.info("group %s has no offset for %s: the redrive begins at offset %d", group, where, self._position)
            self._counts.is_new = True
        else:
            progress, topic_id = Progress.from_text(stored.offset, stored.text)
            if stored.offset > self._watermarks.end:
                # An open transaction may hold back the last stable offset. Nothing can be read until it ends.
                place = (topic, self._partition)
                written = read_watermarks(self._shared.clients, [place], "read_uncommitted")[place].end
                self._watermarks = replace(self._watermarks, end=min(stored.offset, written))
                self._counts.end = self._watermarks.end
            if (topic_id is not None and topic_id != self._shared.topic_id) or stored.offset > self._watermarks.end:
                msg = f"offset {stored.offset} of group {group} for {where} belongs to a deleted topic of the same name"
                raise TopicRecreatedError(msg, fix=f"start from the first record of the new topic: {cli}", **ids)
            self._counts.expired = progress.undone_before(self._watermarks.log_start)
            if self._counts.expired:
                logger.warning(
                    "%s: retention deleted up to %d dead letters before offset %d before they were redriven",
                    *(where, self._counts.expired, self._watermarks.log_start),
                )
            self._progress = progress.from_log_start(self._watermarks.log_start)
        self._position = min(self._progress.frontier, self._watermarks.end)
        self._counts.start, self._counts.committed = self._position, self._progress.frontier

    def _read(self, wanted: OffsetRange) -> bool:
        """Read, decide, and send in batches. Return False if the limit stopped it."""
        pace, options = self._shared.pace, self._options
        for dead_letter in read_range(self._shared.clients.settings, options.group_name, wanted):
            item = self._decide(dead_letter)
            self._counts.read += 1
            if self._counts.read % _PROGRESS_EVERY == 0:
                self._report(item.offset + 1)
            if item.decision is None and not self._pending:
                # Nothing to commit: the progress already has finished records, and a skipped record does not change it.
                self._position = item.offset + 1
                continue
            self._pending.append(item)
            if item.record is not None:
                self._pending_records += 1
                self._pending_bytes += len(item.record.key or b"") + len(item.record.value or b"")
            left = None
            if options.limit is not None:
                left = options.limit - self._shared.result.total("moved")
            batch = pace.batch(options.batch_records if left is None else min(left, options.batch_records))
            is_full = self._pending_records >= batch or self._pending_bytes >= _MAX_PENDING_BYTES
            if is_full or len(self._pending) >= _MAX_PENDING:
                self._commit(self._pending)
                if left is not None and options.limit == self._shared.result.total("moved"):
                    self._shared.result.limited = True
                    return False
        return True

    def _decide(self, dead_letter: KafkaRecord) -> _Item:
        offset = dead_letter.offset or 0
        if self._progress.is_done(offset):
            self._counts.done_before += 1
            return _Item(offset, None, is_done=True)
        found = read_dead_letter(dead_letter)
        if not self._options.filter.takes(found):
            self._counts.left_out += 1
            return _Item(offset, None, is_done=False)
        if found.attempts < self._options.max_attempts:
            completed = self._shared.payloads.complete(found)
            if isinstance(completed, Decision):
                return _Item(offset, completed, is_done=False)
            found = completed
        decision = decide(found, self._options, self._shared.topics, int(self._shared.now_s() * 1000))
        return _Item(offset, decision, is_done=decision.action is not Action.KEEP)

    def _commit(self, items: Sequence[_Item], end: int | None = None) -> None:
        """Send the pending records and clear the batch."""
        self._shared.pace.wait(self._pending_records)
        self._pending, self._pending_records, self._pending_bytes = [], 0, 0
        self._send(items, end)
        self._report()

    def _send(self, items: Sequence[_Item], end: int | None) -> None:
        progress = self._progress.advanced(self._position, [(item.offset, item.is_done) for item in items], end)
        text = progress.to_text(self._shared.topic_id)
        records = [item.record for item in items if item.record is not None]
        if self._transaction is not None:
            limits = [self._shared.topics(record.topic or "").limits.max_message_bytes for record in records]
            try:
                smallest = {"batch_bytes": min(limits)} if limits else {}
                self._transaction.send(records, progress.frontier, text, **smallest)
            except RejectedError as error:
                self._without_rejected(items, end, error)
                return
        self._progress = progress
        if items:
            self._position = items[-1].offset + 1
        self._counts.committed = progress.frontier
        for item in items:
            if item.decision is not None:
                self._shared.result.note(self._counts, item.decision)
                if self._shared.on_decision is not None:
                    self._shared.on_decision(item.decision)

    def _without_rejected(self, items: Sequence[_Item], end: int | None, error: RejectedError) -> None:
        """Halve the batch until the rejected record is isolated, and keep its dead letter."""
        sending = [index for index, item in enumerate(items) if item.record is not None]
        if len(sending) > 1:
            middle = sending[len(sending) // 2]
            self._send(items[:middle], None)
            self._send(items[middle:], end)
            return
        (index,) = sending
        rejected = items[index]
        if rejected.decision is not None:
            detail = f"the brokers reject its record for {rejected.decision.target}: {error}"
            item = _Item(rejected.offset, kept(rejected.decision.found, "refused", detail), is_done=False)
            self._send([*items[:index], item, *items[index + 1 :]], end)

    def _report(self, position: int | None = None) -> None:
        if self._shared.on_progress is not None:
            now = self._position if position is None else position
            event = RedriveProgress(self._partition, self._counts.start, now, self._watermarks.end, self._counts.moved)
            self._shared.on_progress(event)
