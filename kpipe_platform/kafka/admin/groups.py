"""Consumer groups: committed offsets with their metadata, and members.

Source: KIP-447 (pending transactional offsets), Kafka protocol OffsetFetch v8 and DescribeGroups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from difflib import SequenceMatcher

from confluent_kafka import KafkaException, TopicPartition

from kpipe_platform.errors import (
    BrokerUnavailableError,
    ConfigError,
    ForeignMemberError,
    KpipeError,
    OffsetsPendingError,
    TerminalError,
)
from kpipe_platform.kafka.client.calls import ask
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata
from kpipe_platform.kafka.model.offsets import Partition

# A reachable coordinator reports at once whether an offset is pending.
_DECIDED_S = 2.0
# Offsets stay pending for some milliseconds after a commit, and until the transaction timeout after a killed run.
# This wait covers the first case only: the next run aborts the transaction of a killed run.
_UNDECIDED_S = 1.5
# Maximum number of groups to check for offsets of a topic, most similar names first; each check is one call.
_GROUPS_ASKED = 50


@dataclass(frozen=True)
class CommittedOffset:
    """A group's committed offset of one partition.

    Args:
        offset: Next offset to read.
        metadata: Metadata that kpipe stored with the offset; None if another tool committed it.
    """

    offset: int
    metadata: CommitMetadata | None = None


@dataclass(frozen=True)
class GroupMember:
    """A live member of a consumer group.

    Args:
        member_id: Member id that the broker assigned.
        client_id: ``client.id`` of the member.
        host: Host that it connects from.
        instance_id: ``group.instance.id`` of a static member; None for a dynamic member.
        partitions: Assigned partitions.
    """

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    partitions: frozenset[Partition] = frozenset()

    @property
    def name(self) -> str:
        """Display name: the instance id, or the client id and host."""
        return self.instance_id or f"{self.client_id} at {self.host.lstrip('/')}"


Offsets = dict[Partition, CommittedOffset | None]


def committed_offsets(clients: Clients, group: str, partitions: Iterable[Partition]) -> Offsets:
    """Return the group's committed offsets; None for a partition without one.

    If an offset is pending in an open transaction, wait until the transaction ends or the connection's deadline passes.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
        OffsetsPendingError: An offset is still pending at the deadline.
        AuthorizationFailedError: The group may not be read.
    """
    wanted = list(partitions)
    timeout_s = clients.settings.request_timeout_s
    try:
        return fetch_offsets(clients, group, wanted, isolation="read_committed", timeout_s=timeout_s)
    except BrokerUnavailableError:
        # Three causes are possible: the brokers are unreachable, and this call fails too; the response waits for a
        # transaction; or a new cluster took long to find the group's coordinator, and has found it by now.
        _uncommitted_offsets(clients, group, wanted)
    try:
        return fetch_offsets(clients, group, wanted, isolation="read_committed", timeout_s=min(_DECIDED_S, timeout_s))
    except BrokerUnavailableError as error:
        where = ", ".join(f"{topic}/{number}" for topic, number in wanted[:3])
        message = f"an open transaction has held an offset of group {group} in {where} for more than {timeout_s:g} s"
        raise OffsetsPendingError(
            message,
            fix="wait for the run that opened it; if that run was killed: kpipe transactions abort TRANSACTIONAL_ID",
            group=group,
        ) from error


def fetch_offsets(
    clients: Clients, group: str, partitions: Sequence[Partition], *, isolation: str, timeout_s: float
) -> Offsets:
    """Fetch the group's offsets once, with a consumer that never joins the group.

    librdkafka's admin client is not used, because it crashes the process if the coordinator temporarily refuses the
    fetch, for example on a new cluster.

    Args:
        clients: The clients to use.
        group: Consumer group.
        partitions: Partitions to fetch.
        isolation: ``read_committed`` waits for offsets of open transactions; ``read_uncommitted`` returns the offsets
            that are already stored.
        timeout_s: Maximum wait, seconds.

    Raises:
        BrokerUnavailableError: No answer in that time, or a transaction stayed open.
        AuthorizationFailedError: The group may not be read.
    """
    stored = fetch_stored(clients, group, partitions, isolation=isolation, timeout_s=timeout_s)
    return {
        # A negative offset without an error means that the group has no committed offset.
        topic_partition: None if tp.offset < 0 else CommittedOffset(tp.offset, CommitMetadata.from_text(tp.metadata))
        for topic_partition, tp in zip(partitions, stored, strict=True)
    }


def stored_offsets(clients: Clients, group: str, partitions: Sequence[Partition]) -> Offsets:
    """Return the group's stored offsets without waiting for open transactions.

    If an open transaction holds an offset, a second call reads the offsets that are already stored. A killed run leaves
    such a transaction open until the next run aborts it, and sensor ticks and status commands must not block on it.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
        AuthorizationFailedError: The group may not be read.
    """
    timeout_s = clients.settings.request_timeout_s
    try:
        return fetch_offsets(
            clients, group, partitions, isolation="read_committed", timeout_s=min(_UNDECIDED_S, timeout_s)
        )
    except BrokerUnavailableError:
        # Either the brokers are unreachable, and this call fails too, or the response waits for the transaction.
        return _uncommitted_offsets(clients, group, partitions)


def _uncommitted_offsets(clients: Clients, group: str, partitions: Sequence[Partition]) -> Offsets:
    timeout_s = clients.settings.request_timeout_s
    try:
        return fetch_offsets(clients, group, partitions, isolation="read_uncommitted", timeout_s=timeout_s)
    except BrokerUnavailableError:
        # Without an ACL for the group, librdkafka looks for the coordinator until the time-out. This call says why.
        group_members(clients, group)
        raise


def fetch_stored(
    clients: Clients, group: str, partitions: Sequence[Partition], *, isolation: str, timeout_s: float
) -> list[TopicPartition]:
    """Fetch offsets as `fetch_offsets` does, and return the client's objects, in the order of the partitions."""
    wanted = [TopicPartition(topic, number) for topic, number in partitions]

    def request() -> Future[list[TopicPartition]]:
        answer: Future[list[TopicPartition]] = Future()
        stored = clients.consumer(group, isolation).committed(wanted, timeout=timeout_s)
        failed = next((tp.error for tp in stored if tp.error is not None), None)
        if failed is not None:
            raise KafkaException(failed)
        answer.set_result(stored)
        return answer

    # A coordinator that has just started or is moving refuses temporarily; ask() retries that.
    return ask(request, clients, f"read the offsets of group {group}", group=group)


def group_name(prefix: str, key: Sequence[str]) -> str:
    """Return the consumer group of an asset: the prefix and the parts of its key, joined by dots.

    Raises:
        ConfigError: A part contains a dot, so another asset could have the same group.
    """
    for part in key:
        if "." in part:
            whole = "/".join(key)
            msg = f"asset {whole}: a consumer group joins the parts of a key with dots, but {part!r} contains a dot"
            split = [name for part in key for name in part.split(".")]
            raise ConfigError(msg, fix=f"split the part: key={split} has the same consumer group", asset=whole)
    return ".".join([prefix, *key])


def group_members(clients: Clients, group: str) -> list[GroupMember]:
    """Return the live members of the group; empty if the group does not exist."""
    settings = clients.settings
    try:
        described = ask(
            lambda: clients.admin().describe_consumer_groups([group], request_timeout=settings.request_timeout_s)[
                group
            ],
            clients,
            f"describe group {group}",
            group=group,
        )
    except TerminalError as error:
        if error.attributes.get("code") == "GROUP_ID_NOT_FOUND":
            return []
        raise
    return [
        GroupMember(
            each.member_id,
            each.client_id,
            each.host,
            each.group_instance_id,
            frozenset((p.topic, p.partition) for p in each.assignment.topic_partitions)
            if each.assignment is not None
            else frozenset(),
        )
        for each in described.members
    ]


def refuse_unknown(clients: Clients, group: str, topic: str, partitions: int) -> None:
    """Refuse a group that has neither an offset of the topic nor a member: its name is probably mistyped.

    Args:
        clients: The clients to use.
        group: Consumer group.
        topic: Topic name.
        partitions: Number of partitions of the topic.

    Raises:
        ConfigError: The group is unknown; the message lists groups that have offsets of the topic.
        BrokerUnavailableError: No answer within the deadline.
    """
    topic_partitions = [(topic, number) for number in range(partitions)]
    if any(stored_offsets(clients, group, topic_partitions).values()) or group_members(clients, group):
        return
    readers = _readers(clients, topic_partitions, group)
    known = f"groups that have one: {', '.join(readers)}" if readers else "no visible group has one"
    msg = f"group {group!r} has no committed offset in topic {topic!r}; {known}"
    raise ConfigError(
        msg,
        fix="correct the group: the source's group_prefix, a dot, and the asset's key joined with dots; for a group "
        "without offsets, add --new-group if the command has this option",
        group=group,
        topic=topic,
    )


def _readers(clients: Clients, topic_partitions: Sequence[Partition], like: str) -> list[str]:
    """Return groups with an offset of a topic, most similar names first; empty if listing groups is not allowed."""
    timeout_s = clients.settings.request_timeout_s
    readers = []
    try:
        listed = ask(
            lambda: clients.admin().list_consumer_groups(request_timeout=timeout_s), clients, "list consumer groups"
        )
        names = [each.group_id for each in listed.valid if each.group_id != like]
        names.sort(key=lambda name: (-SequenceMatcher(None, name, like).ratio(), name))
        for name in names[:_GROUPS_ASKED]:
            # Separate clients, because shared ones would keep a consumer open for each group.
            with Clients(clients.settings) as own:
                stored = fetch_offsets(own, name, topic_partitions, isolation="read_uncommitted", timeout_s=timeout_s)
            if any(stored.values()):
                readers.append(name)
    except KpipeError:
        # This list is only a hint in an error message, so return what was read before the failure.
        return readers
    return readers


def refuse_foreign_members(group: str, members: Iterable[GroupMember]) -> None:
    """Refuse a group with live members: kpipe never joins the asset's group, so any member is a foreign consumer.

    Raises:
        ForeignMemberError: The group has a member.
    """
    foreign = list(members)
    if foreign:
        named = ", ".join(f"{m.client_id} at {m.host}" for m in foreign[:3])
        msg = f"group {group} is in use by {len(foreign)} other consumer(s): {named}"
        raise ForeignMemberError(
            msg,
            fix="stop these consumers or change their group.id; only the asset may use this group",
            group=group,
            members=tuple(m.client_id for m in foreign),
        )
