"""Stage: call the user's function with the rows of a slice."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext

from kpipe_platform.dead_letters import Segment
from kpipe_platform.slices.values import DeferredStage, PlannedSlice, Sources, StagedSlice
from kpipe_platform.spark.failures import classify, is_classified, is_sparks
from kpipe_platform.spark.stage.convert import to_form
from kpipe_platform.spark.stage.notes import noting

# Allow one call at a time in this process. A stage may register its input as a temporary view with a fixed name; if two
# calls overlapped, it would read the view of another partition or part.
_CALLING = threading.Lock()


def call_stage(planned: PlannedSlice, stage: DeferredStage, sources: Sources) -> StagedSlice:
    """Call the stage once. Its output is usually lazy: Spark computes it during the write.

    Args:
        planned: The slice.
        stage: The stage.
        sources: Rows of the slice, or of a part of it.

    Raises:
        StageFailedError: The stage failed, and isolation is allowed.
        Exception: The stage's own exception, if isolation is not allowed.
    """
    began, started_ms = time.monotonic(), int(time.time() * 1000)
    with noting() as notes:
        try:
            inputs = {
                name: to_form(sources[name][1].good, each.form, sources[name][0].value_codec)
                for name, each in stage.inputs.items()
            }
            with _CALLING if any(each.form == "spark" for each in stage.inputs.values()) else nullcontext():
                output = stage.call(inputs)
        except Exception as error:
            notes.release()
            # Without isolation, let Dagster show the user's own exception.
            if is_sparks(error) or (stage.isolate and not is_classified(error)):
                raise classify(error, str(planned.slice)) from error
            raise
    called = Segment("stage", started_ms, int((time.monotonic() - began) * 1000))
    return StagedSlice(planned.slice, sources, output, notes, (*planned.segments, called), planned.retries)
