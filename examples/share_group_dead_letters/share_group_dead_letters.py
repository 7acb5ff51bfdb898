"""A header family that kpipe does not include: dead letters of Kafka's share groups (KIP-1191).

Brokers write them with ``__dlq.errors.*`` headers. They do not copy the headers of the record, and copy key and value
only if the group is configured to do so. The rest is read from the source topic, as long as it retains the record.
"""

from __future__ import annotations

from dataclasses import replace

from kpipe_platform.dead_letters import FoundDeadLetter, HeaderFamily


def refine(found: FoundDeadLetter) -> FoundDeadLetter:
    """Mark the parts of the record that must be read from the source topic."""
    original, message = found.original, found.dead_letter
    if None in (original.topic, original.partition, original.offset):
        return found
    is_bare = message.key is None and message.value is None
    if not found.topics:
        return replace(found, from_source="payload" if is_bare else "headers")
    if is_bare:
        return replace(found, problem=f"its payload is in one of the topics {', '.join(found.topics)}")
    return found


SHARE_GROUP = HeaderFamily(
    "share_group",
    topic="__dlq.errors.topic",
    partition="__dlq.errors.partition",
    offset="__dlq.errors.offset",
    messages=("__dlq.errors.message",),
    group="__dlq.errors.group",
    prefixes=("__dlq.errors.",),
    refine=refine,
)
