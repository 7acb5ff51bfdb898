"""Consumer groups: committed offsets with their metadata, and members.

Source: KIP-447 (pending transactional offsets), Kafka protocol OffsetFetch v8 and DescribeGroups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from kpipe_platform.errors import OffsetsPendingError, TerminalError
from kpipe_platform.kafka.calls import ask, translate
from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.commit_metadata import CommitMetadata
from kpipe_platform.kafka.offsets import Partition


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
    """

    member_id: str
    client_id: str
    host: str


class _UnstableOffsetError(Exception):
    """A transaction that holds this offset is neither committed nor aborted yet."""


def committed_offsets(
    clients: Clients, group: str, partitions: Iterable[Partition]
) -> dict[Partition, CommittedOffset | None]:
    """The group's committed offsets; None where it has none.

    An offset that is pending in an open transaction is asked for again until it is decided, or the connection's
    deadline passes.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
        OffsetsPendingError: An offset is still pending at the deadline.
        AuthorizationFailedError: The group may not be read.
    """
    wanted = list(partitions)
    settings = clients.settings
    retrying = Retrying(
        retry=retry_if_exception_type(_UnstableOffsetError),
        wait=wait_exponential(multiplier=0.02, max=0.5),
        stop=stop_after_delay(settings.request_timeout_s),
        reraise=True,
    )
    try:
        return retrying(_committed_once, clients, group, wanted)
    except _UnstableOffsetError as error:
        message = (
            f"the offset of group {group} for {error} is held by an open transaction for more than "
            f"{settings.request_timeout_s:g} s"
        )
        raise OffsetsPendingError(
            message,
            fix="wait for the run that holds it; if it was killed: kpipe transactions abort TRANSACTIONAL_ID",
            group=group,
        ) from error


def _committed_once(
    clients: Clients, group: str, partitions: list[Partition]
) -> dict[Partition, CommittedOffset | None]:
    settings = clients.settings
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(t, n) for t, n in partitions])
    answer = ask(
        lambda: clients.admin().list_consumer_group_offsets(
            [request], require_stable=True, request_timeout=settings.request_timeout_s
        )[group],
        clients,
        f"read the offsets of group {group}",
        group=group,
    )
    found: dict[Partition, CommittedOffset | None] = {}
    for tp in answer.topic_partitions:
        where = f"{tp.topic}/{tp.partition}"
        if tp.error is not None:
            if tp.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT:
                raise _UnstableOffsetError(where)
            raise translate(tp.error, settings, f"read the offset of group {group} for {where}", group=group)
        # A negative offset without an error is the protocol's way to say that there is none.
        found[(tp.topic, tp.partition)] = (
            None if tp.offset < 0 else CommittedOffset(tp.offset, CommitMetadata.from_text(tp.metadata))
        )
    return found


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
    return [GroupMember(m.member_id, m.client_id, m.host) for m in described.members]
