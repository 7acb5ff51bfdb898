"""Where the time between a record and its commit goes, read off the events of the run that took it."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

# What Dagster's launcher says first in the process of a run, before the code is loaded there.
_PROCESS = "Started process for run"


@dataclass(frozen=True)
class Latency:
    """One record's way from the producer to the group's offset.

    Args:
        total_s: From before it was produced until the group's offset was seen behind it, seconds.
        parts_s: The same by part, in their order; what is left is the watching itself.
    """

    total_s: float
    parts_s: dict[str, float]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.parts_s.items())
        return f"{self.total_s:.2f} s ({parts})"


def latency_of(instance: dg.DagsterInstance, run_id: str, produced_s: float, seen_s: float) -> Latency:
    """The parts of a run's latency.

    Args:
        instance: Dagster instance.
        run_id: The run; it is finished.
        produced_s: Before the record was produced, seconds since the epoch.
        seen_s: When the offset behind it was seen, likewise.

    Returns:
        Parts: tick (until the run is queued), queue (until it is taken out), launch (until its process runs), import
        (until the code is loaded there), start (until its step works), by step of the slice (plan, spark, commit and
        so on, as its materialization says), and rest (between the step's work and its parts).
    """
    at_s: dict[str, float] = {}
    steps_s: dict[str, float] = {}
    for entry in instance.all_logs(run_id):
        event = entry.dagster_event
        if event is None:
            continue
        at_s.setdefault(event.event_type_value, entry.timestamp)
        if (event.message or "").startswith(_PROCESS):
            at_s.setdefault(_PROCESS, entry.timestamp)
        if event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION:
            metadata = event.step_materialization_data.materialization.metadata
            table = metadata["kpipe/steps"]
            assert isinstance(table, dg.TableMetadataValue)
            steps_s = {str(row.data["step"]): float(str(row.data["seconds"])) for row in table.records}
    kind = dg.DagsterEventType
    marks = [
        produced_s,
        at_s[kind.RUN_ENQUEUED.value],
        at_s[kind.RUN_STARTING.value],
        at_s[_PROCESS],
        at_s[kind.RUN_START.value],
        at_s[kind.STEP_START.value],
    ]
    before = {
        name: end - start
        for name, start, end in zip(("tick", "queue", "launch", "import", "start"), marks, marks[1:], strict=False)
    }
    rest_s = seen_s - marks[-1] - sum(steps_s.values())
    return Latency(seen_s - produced_s, {**before, **steps_s, "rest": rest_s})
