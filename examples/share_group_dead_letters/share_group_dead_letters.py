"""A header family that kpipe does not bring: the dead letters of Kafka's share groups (KIP-1191).

Brokers write them with ``__dlq.errors.*`` headers. They copy no headers of the record, and key and value only where the
group is configured so: the rest has to be read from the source topic, as long as that retains it.
"""

from __future__ import annotations

from dataclasses import replace

from kpipe_platform.dead_letters import FoundDeadLetter, HeaderFamily


def refine(found: FoundDeadLetter) -> FoundDeadLetter:
    """Say what only the source topic has."""
    original, message = found.original, found.letter
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
