"""Outcomes as JSON, in which form a writer task returns them.

The driver holds every credential, and executors run user code. Results of executors are therefore JSON: unpickling them
could run code on the driver.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from kpipe_platform import errors
from kpipe_platform.errors import KpipeError
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.policies.faults import Component, Fault, FaultAction
from kpipe_platform.spark.sink.spec import FaultSample, Outcome, PreviewRow
from kpipe_platform.spark.stage.notes import RuleCount

__all__ = ["outcome_of_json", "outcome_to_json"]


def outcome_to_json(outcome: Outcome) -> str:
    """Serialize an outcome as JSON text."""
    document = {
        "status": outcome.status,
        "counts": [[src, asdict(counts)] for src, counts in outcome.counts.items()],
        "faults": outcome.faults,
        "samples": [asdict(sample) for sample in outcome.samples],
        "reasons": outcome.reasons,
        "rules": [asdict(rule) for rule in outcome.rules.values()],
        "rejected": [[where, asdict(fault)] for where, fault in outcome.rejected.items()],
        "preview": [asdict(row) for row in outcome.preview],
        "written": outcome.written,
        "error": None if outcome.error is None else _error_document(outcome.error),
        "steps_s": outcome.steps_s,
    }
    # Attributes that JSON cannot represent become their text, which is enough for an error message.
    return json.dumps(document, separators=(",", ":"), default=str)


def outcome_of_json(text: str) -> Outcome:
    """Parse the JSON text of `outcome_to_json`."""
    document = json.loads(text)
    return Outcome(
        status=document["status"],
        counts={src: SliceCounts(**counts) for src, counts in document["counts"]},
        faults=document["faults"],
        samples=[
            FaultSample(**{**sample, "fault": _fault(sample["fault"]), "action": FaultAction(sample["action"])})
            for sample in document["samples"]
        ],
        reasons=document["reasons"],
        rules={rule["rule"]: RuleCount(**rule) for rule in document["rules"]},
        rejected={
            tuple(where) if isinstance(where, list) else where: _fault(fault) for where, fault in document["rejected"]
        },
        preview=[PreviewRow(**row) for row in document["preview"]],
        written=document["written"],
        error=None if document["error"] is None else _error(document["error"]),
        steps_s=document["steps_s"],
    )


def _fault(document: dict[str, Any]) -> Fault:
    return Fault(**{**document, "component": Component(document["component"])})


def _error_document(error: KpipeError) -> dict[str, Any]:
    # The nearest public class. A codec's own error class is a subclass of one.
    kind = next(cls for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
    return {
        "kind": kind.__name__,
        "message": error.message,
        "fix": error.fix,
        "part": error.part,
        "attributes": error.attributes,
    }


def _error(document: dict[str, Any]) -> KpipeError:
    kind = getattr(errors, document["kind"])
    if not (isinstance(kind, type) and issubclass(kind, KpipeError)):
        msg = f"a writer task returned the error {document['kind']!r}, which is not a kpipe error"
        raise TypeError(msg)
    error: KpipeError = kind(document["message"], fix=document["fix"], **document["attributes"])
    error.part = document["part"]
    return error
