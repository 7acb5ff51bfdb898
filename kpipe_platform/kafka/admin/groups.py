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

# A coordinator that answers says at once whether an offset is pending.
_DECIDED_S = 2.0
# A transaction that has just committed holds its offsets for some milliseconds more; one of a killed run holds them
# until its timeout. The first is waited for, the second is not: the next run aborts it.
_UNDECIDED_S = 1.5
# Groups that are asked whether they read a topic, those with the most similar names first; each is one call.
_GROUPS_ASKED = 50


@dataclass(frozen=True)
class CommittedOffset:
    """A group's offset of one partition.

    Args:
        offset: Next offset to read.
        metadata: What kpipe stored beside it; None when another tool moved the offset.
    """

    offset: int
    metadata: CommitMetadata | None = None


@dataclass(frozen=True)
class GroupMember:
    """A live member of a consumer group.

    Args:
        member_id: The broker's id of the member.
        client_id: Its ``client.id``.
        host: Where it connects from.
        instance_id: Its name as a static member; None for others.
        partitions: What it is assigned.
    """

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    partitions: frozenset[Partition] = frozenset()

    @property
    def name(self) -> str:
        """What people know it by: the instance id, or the client id and host."""
        return self.instance_id or f"{self.client_id} at {self.host.lstrip('/')}"


Offsets = dict[Partition, CommittedOffset | None]


def committed_offsets(clients: Clients, group: str, partitions: Iterable[Partition]) -> Offsets:
    """The group's committed offsets; None where it has none.

    An offset that is pending in an open transaction is waited for until it is decided, or the connection's deadline
    passes.

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
        # Either nobody answers, which this says too, or the answer waits for a transaction; or the brokers were slow to
        # find the group's coordinator, which a new cluster is, and have found it now.
        fetch_offsets(clients, group, wanted, isolation="read_uncommitted", timeout_s=timeout_s)
    try:
        return fetch_offsets(clients, group, wanted, isolation="read_committed", timeout_s=min(_DECIDED_S, timeout_s))
    except BrokerUnavailableError as error:
        where = ", ".join(f"{topic}/{number}" for topic, number in wanted[:3])
        message = f"an offset of group {group} for {where} is held by an open transaction for more than {timeout_s:g} s"
        raise OffsetsPendingError(
            message,
            fix="wait for the run that holds it; if it was killed: kpipe transactions abort TRANSACTIONAL_ID",
            group=group,
        ) from error


def fetch_offsets(
    clients: Clients, group: str, partitions: Sequence[Partition], *, isolation: str, timeout_s: float
) -> Offsets:
    """The group's offsets, asked once by a consumer that never joins it.

    Not by the admin client: where the coordinator refuses the fetch for the moment, for example on a new cluster,
    librdkafka's takes the whole process down.

    Args:
        clients: The clients to use.
        group: Consumer group.
        partitions: Which partitions.
        isolation: ``read_committed`` waits for offsets of undecided transactions; ``read_uncommitted`` gives those
            that are stored already.
        timeout_s: How long to wait, seconds.

    Raises:
        BrokerUnavailableError: No answer in that time, or none while a transaction is undecided.
        AuthorizationFailedError: The group may not be read.
    """
    found = fetch_stored(clients, group, partitions, isolation=isolation, timeout_s=timeout_s)
    return {
        # A negative offset without an error is the protocol's way to say that there is none.
        place: None if tp.offset < 0 else CommittedOffset(tp.offset, CommitMetadata.from_text(tp.metadata))
        for place, tp in zip(partitions, found, strict=True)
    }


def stored_offsets(clients: Clients, group: str, partitions: Sequence[Partition]) -> Offsets:
    """The group's offsets in one call; where an open transaction holds some, in a second one without waiting for it.

    A run that was killed leaves such a transaction behind, and the run that comes next aborts it: so a tick, and
    whoever wants to see where the group stands, must go on with the offsets that are stored already.

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
        # Either nobody answers, which this call will say, or the answer waits for the transaction.
        return fetch_offsets(clients, group, partitions, isolation="read_uncommitted", timeout_s=timeout_s)


def fetch_stored(
    clients: Clients, group: str, partitions: Sequence[Partition], *, isolation: str, timeout_s: float
) -> list[TopicPartition]:
    """What `fetch_offsets` reads, as the client gives it: in the order asked for, with the text beside each offset."""
    wanted = [TopicPartition(topic, number) for topic, number in partitions]

    def request() -> Future[list[TopicPartition]]:
        answer: Future[list[TopicPartition]] = Future()
        found = clients.consumer(group, isolation).committed(wanted, timeout=timeout_s)
        failed = next((tp.error for tp in found if tp.error is not None), None)
        if failed is not None:
            raise KafkaException(failed)
        answer.set_result(found)
        return answer

    # A coordinator that has just started, or moves, refuses for a moment, which is asked again.
    return ask(request, clients, f"read the offsets of group {group}", group=group)


def group_name(prefix: str, key: Sequence[str]) -> str:
    """The consumer group of an asset: the prefix and the parts of its key, joined by dots.

    Raises:
        ConfigError: A part has a dot itself, so that another asset may have the group.
    """
    for part in key:
        if "." in part:
            whole = "/".join(key)
            msg = f"asset {whole}: a consumer group joins the parts of a key by dots, and {part!r} has one"
            split = [name for part in key for name in part.split(".")]
            raise ConfigError(msg, fix=f"split it: key={split}, whose group is the same", asset=whole)
    return ".".join([prefix, *key])


def group_members(clients: Clients, group: str) -> list[GroupMember]:
    """Live members of the group; empty where the group does not exist."""
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
    """Refuse a group that has neither an offset of a topic nor a member: its name is probably mistyped.

    Args:
        clients: The clients to use.
        group: Consumer group.
        topic: Topic name.
        partitions: Partitions of the topic.

    Raises:
        ConfigError: Nobody knows the group; the message names those that have offsets of the topic.
        BrokerUnavailableError: No answer within the deadline.
    """
    places = [(topic, number) for number in range(partitions)]
    if any(stored_offsets(clients, group, places).values()) or group_members(clients, group):
        return
    readers = _readers(clients, places, group)
    known = f"groups that have one: {', '.join(readers)}" if readers else "no group that can be seen has one"
    msg = f"group {group!r} has no offset of topic {topic!r}; {known}"
    raise ConfigError(
        msg,
        fix="correct the group: the source's group_prefix, a dot, and the asset's key joined by dots; for a group that "
        "has stored no offset yet, where the command takes it: --new-group",
        group=group,
        topic=topic,
    )


def _readers(clients: Clients, places: Sequence[Partition], like: str) -> list[str]:
    """Groups with an offset of a topic, the most similar names first; empty where they may not be listed."""
    timeout_s = clients.settings.request_timeout_s
    found = []
    try:
        listed = ask(
            lambda: clients.admin().list_consumer_groups(request_timeout=timeout_s), clients, "list consumer groups"
        )
        names = [each.group_id for each in listed.valid if each.group_id != like]
        names.sort(key=lambda name: (-SequenceMatcher(None, name, like).ratio(), name))
        for name in names[:_GROUPS_ASKED]:
            # Clients of its own: a consumer for each group would stay open beside the others.
            with Clients(clients.settings) as own:
                stored = fetch_offsets(own, name, places, isolation="read_uncommitted", timeout_s=timeout_s)
            if any(stored.values()):
                found.append(name)
    except KpipeError:
        # What is known so far helps; that the others may not be read is not what was asked.
        return found
    return found


def refuse_foreign_members(group: str, members: Iterable[GroupMember]) -> None:
    """Kpipe never joins the asset's group, so any member is somebody else's consumer.

    Raises:
        ForeignMemberError: The group has a member.
    """
    found = list(members)
    if found:
        named = ", ".join(f"{m.client_id} at {m.host}" for m in found[:3])
        msg = f"group {group} is in use by {len(found)} other consumer(s): {named}"
        raise ForeignMemberError(
            msg,
            fix="stop them or give them another group.id; this group belongs to the asset alone",
            group=group,
            members=tuple(m.client_id for m in found),
        )
