"""Running a ``@kafka_asset``: consecutive slices of each Kafka partition, several partitions at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from kpipe_platform.codecs import RawCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import ConfigError, KpipeError, PartitionsFailedError
from kpipe_platform.io_managers.feed import StagedFeeds
from kpipe_platform.io_managers.pipeline import Pipeline, SliceReport, Target
from kpipe_platform.io_managers.report import describe
from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.spark.convert import is_records, to_form, to_frame
from kpipe_platform.spark.failures import classify, is_sparks
from kpipe_platform.spark.reader import SliceFrames

logger = logging.getLogger(__name__)

Store = Callable[[Any], None]


class FeedRunner:
    """Takes slices and writes them.

    Args:
        staged: The stage and its inputs.
        pipeline: The step's resources.
        topic: Destination topic; None where ``store`` takes the output.
        store: The inner IO manager's store; None where the output goes to Kafka.
        clock: Monotonic seconds; injected for tests.
    """

    def __init__(
        self,
        staged: StagedFeeds,
        pipeline: Pipeline,
        *,
        topic: KafkaTopic | None,
        store: Store | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._staged = staged
        self._pipeline = pipeline
        self._topics = [feed.topic for feed in staged.feeds.values()]
        self._topic = topic
        self._store = store
        self._clock = clock

    def run_all(self, numbers: list[int] | None) -> list[SliceReport]:
        """Slices over all the given Kafka partitions at once (None: over all of them), in one transaction each."""
        with self._pipeline.source.clients() as clients:
            target = self._pipeline.target(clients, self._topics, self._topic)
            return self._consecutive(clients, target, numbers)

    def run_each(self, numbers: list[int]) -> Iterator[tuple[int, list[SliceReport] | Exception]]:
        """Each Kafka partition by itself, up to ``max_concurrent_partitions`` at a time.

        Yields:
            The partition with its reports, or with what went wrong; the others go on.
        """
        with self._pipeline.source.clients() as clients:
            target = self._pipeline.target(clients, self._topics, self._topic)
            # Started once, before the threads that would race for it.
            self._pipeline.engine.spark_session  # noqa: B018
            workers = min(self._pipeline.scaling.max_concurrent_partitions, len(numbers))
            with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="kpipe-partition") as pool:
                pending: dict[Future[list[SliceReport]], int] = {
                    pool.submit(self._consecutive, clients, target, [number]): number for number in numbers
                }
                try:
                    while pending:
                        done, _ = wait(pending, return_when=FIRST_COMPLETED, timeout=0.5)
                        for future in done:
                            number = pending.pop(future)
                            error = future.exception()
                            if error is None:
                                yield number, future.result()
                            elif isinstance(error, Exception):
                                yield number, error
                            else:
                                raise error
                finally:
                    for future in pending:
                        future.cancel()

    def _consecutive(self, clients: Clients, target: Target, numbers: list[int] | None) -> list[SliceReport]:
        limits = self._staged.limits
        began = self._clock()
        reports: list[SliceReport] = []
        while True:
            report = self._one(clients, target, numbers)
            # A run that catches up ends with the slice that did it, not with an empty one after it.
            if reports and report.slice.is_empty:
                return reports
            reports.append(report)
            logger.info("slice done: %s", dict(describe(report)))
            caught_up = report.slice.is_empty or report.lag == 0
            if caught_up or (limits.max_slices is not None and len(reports) >= limits.max_slices):
                return reports
            if limits.max_duration_s is not None and self._clock() - began >= limits.max_duration_s:
                return reports

    def _one(self, clients: Clients, target: Target, numbers: list[int] | None) -> SliceReport:
        began = self._clock()
        pipeline = self._pipeline
        slice_ = pipeline.plan(clients, self._topics, numbers)
        planned_s = self._clock() - began
        report = pipeline.store_start(slice_) if slice_.is_empty else self._work(slice_, target)
        return replace(
            report,
            duration_s=self._clock() - began,
            steps_s={**report.steps_s, "plan": planned_s},
        )

    def _work(self, slice_: Slice, target: Target) -> SliceReport:
        pipeline = self._pipeline
        reads = {name: (feed.topic, pipeline.read(slice_, feed.topic)) for name, feed in self._staged.feeds.items()}
        try:
            inputs = {
                name: to_form(reads[name][1].good, feed.form, feed.topic.value)
                for name, feed in self._staged.feeds.items()
            }
            output = self._staged.stage(inputs)
            return store_output(pipeline, slice_, reads, output, target, self._store)
        except KpipeError:
            raise
        except Exception as error:
            if is_sparks(error):
                raise classify(error, str(slice_)) from error
            raise
        finally:
            for _, frames in reads.values():
                frames.release()


def store_output(
    pipeline: Pipeline,
    slice_: Slice,
    reads: Mapping[str, tuple[KafkaTopic, SliceFrames]],
    output: Any,
    target: Target,
    store: Store | None,
) -> SliceReport:
    """Write what a stage returned, to Kafka or to the inner store."""
    if store is not None:
        return pipeline.store_elsewhere(slice_, reads, output, target, store)
    if target.topic is None:
        msg = f"the output of {slice_} has neither a topic nor a store"
        raise ConfigError(msg)
    frame = to_frame(pipeline.engine.spark_session, output, target.topic.value)
    if is_records(output):
        # Records carry their own key, timestamp and encoded value.
        target = replace(target, topic=replace(target.topic, key=None, timestamp=None))
        return pipeline.write(slice_, reads, frame, target, codec=RawCodec())
    return pipeline.write(slice_, reads, frame, target)


def partitions_failed(failed: Mapping[int, Exception], done: list[int]) -> Exception:
    """The error of a range run of which some partitions failed."""
    if len(failed) == 1 and not done:
        return next(iter(failed.values()))
    listed = "\n".join(f"    partition {number}: {error}" for number, error in sorted(failed.items()))
    msg = f"{len(failed)} of {len(failed) + len(done)} partitions failed, the others are committed:\n{listed}"
    return PartitionsFailedError(
        msg, fix="mend the cause and run the failed partitions again", errors=dict(failed), done=done
    )
