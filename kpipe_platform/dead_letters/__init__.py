"""Dead letters: failed records, byte for byte, with a description of each failure."""

from kpipe_platform.dead_letters.envelope.decode import decode_envelope, is_envelope
from kpipe_platform.dead_letters.envelope.encode import encode_envelope
from kpipe_platform.dead_letters.envelope.model import Envelope, envelope_schema
from kpipe_platform.dead_letters.envelope.parts import (
    SCHEMA,
    Distribution,
    OriginRange,
    PayloadReference,
    Retry,
    Segment,
)
from kpipe_platform.dead_letters.read.found import FoundDeadLetter
from kpipe_platform.dead_letters.read.header_families import HeaderFamily, header_families
from kpipe_platform.dead_letters.write.build import build_dead_letter, correlation_id
from kpipe_platform.dead_letters.write.context import DeadLetterContext
from kpipe_platform.dead_letters.write.fit import DeadLetter
from kpipe_platform.dead_letters.write.headers import connect_headers, error_headers, spring_headers
from kpipe_platform.dead_letters.write.redaction import Redact, load_redaction

__all__ = [
    "SCHEMA",
    "DeadLetter",
    "DeadLetterContext",
    "Distribution",
    "Envelope",
    "FoundDeadLetter",
    "HeaderFamily",
    "OriginRange",
    "PayloadReference",
    "Redact",
    "Retry",
    "Segment",
    "build_dead_letter",
    "connect_headers",
    "correlation_id",
    "decode_envelope",
    "encode_envelope",
    "envelope_schema",
    "error_headers",
    "header_families",
    "is_envelope",
    "load_redaction",
    "spring_headers",
]
