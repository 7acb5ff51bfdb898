"""One tick of an offset sensor: read the brokers and Dagster, decide, and report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import dagster as dg

from kpipe_platform.assets.topics_read import topics_read
from kpipe_platform.errors import ConfigError, KpipeError
from kpipe_platform.io_managers.step import scaling_of
from kpipe_platform.kafka.client.deadline import Deadline
from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership
from kpipe_platform.partitions.groups import leading_key
from kpipe_platform.partitions.lost import lost_runs
from kpipe_platform.partitions.owners import tags_of
from kpipe_platform.resources.lookup import source_of
from kpipe_platform.resources.scaling import PartitionScaling
from kpipe_platform.resources.source import KafkaSource
from kpipe_platform.sensors.ownership import PartitionShare
from kpipe_platform.sensors.tick.backpressure import Backpressure
from kpipe_platform.sensors.tick.brokers import BrokerView, Downstream, read_brokers, refuse_unequal, tick_settings
from kpipe_platform.sensors.tick.candidates import WHOLE, Target, make_candidates, place_of
from kpipe_platform.sensors.tick.cursor import Cursor, Seen
from kpipe_platform.sensors.tick.decision import Candidate, Decision, Rules, decide
from kpipe_platform.sensors.tick.events import log_saturated, ownership_listener
from kpipe_platform.sensors.tick.growth import Growth, compare, is_foreign, known_keys
from kpipe_platform.sensors.tick.in_flight import RunInFlight, runs_in_flight
from kpipe_platform.sensors.tick.report import (
    Problem,
    problem_text,
    problems_of,
    problems_of_runs,
    shown,
    summary_of,
    unreported,
)
from kpipe_platform.sensors.tick.requests import run_request
from kpipe_platform.slices.plan.ranges import resumption_of

logger = logging.getLogger(__name__)


@runtime_checkable
class Ownership(Protocol):
    """Provides the Kafka partitions that this deployment owns."""

    def owned(self) -> frozenset[Partition] | None:
        """Return the partitions; None while they are not known yet."""


@dataclass(frozen=True)
class OffsetTick:
    """The settings that all ticks of one sensor share.

    Args:
        asset: The asset that runs are requested for.
        rules: Builds the limits of a tick from the number of partitions that may be processed at once.
        backpressure: The downstream asset whose lag stops the sensor; None: no backpressure.
        ownership: Provides the partitions that this deployment owns; None: the source's ``ownership`` decides.
        share: The sensor's group membership, used if the source shares its partitions.
        deadline: The deadline of the broker calls.
        deadline_s: The same deadline, seconds.
        resource_key: Resource key of the source, or of the IO manager that has it.
        clock: Returns seconds since the epoch.
    """

    asset: dg.AssetsDefinition
    rules: Callable[[int], Rules]
    backpressure: Backpressure | None
    ownership: Ownership | Callable[[], frozenset[Partition] | None] | None
    share: PartitionShare
    deadline: Deadline
    deadline_s: float
    resource_key: str
    clock: Callable[[], float]

    def evaluate(self, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Evaluate one tick.

        Raises:
            ConfigError: A definition is wrong. The tick fails, because a skipped tick would hide the error.
        """
        with self.share.deciding():
            return self._evaluate(context)

    def _evaluate(self, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        source = source_of(context.resources, self.resource_key, "a sensor")
        target, scaling = self._target(context, source)
        downstream = self._downstream(context, source)
        definition = self.asset.partitions_def
        name, keys = (None, ()) if definition is None else known_keys(definition, context.instance)
        if is_foreign(name, target.topics):
            # These dynamic partitions follow another topic. Registering the partitions of this topic there would add
            # partitions that the other topic does not have.
            name = None
        # Read the runs before the offsets: a run that ends in between then still counts as in flight. In the other
        # order, its range would be requested again.
        running = runs_in_flight(context.instance, target.key, keys)
        settings = tick_settings(source.connection_settings, self.deadline_s)
        is_shared = self.ownership is not None or source.ownership is not None

        def read() -> BrokerView:
            if self.ownership is None:
                # Start the join first: it proceeds in the background during the broker calls.
                self.share.join(context, source, target, scaling.rebalance_mode, ownership_listener(target.key))
            return read_brokers(settings, target.policy, target.topics, downstream)

        try:
            view = self.deadline.run(read)
            # Read the ownership last: a partition may have moved during the broker calls.
            owned = self._owned(target, view) if is_shared else None
        except ConfigError:
            raise
        except KpipeError as error:
            context.log.warning("tick of group %s skipped: %s", target.group, error)
            return dg.SensorResult(skip_reason=str(error), cursor=context.cursor)
        if is_shared and owned is None:
            reason = f"group {target.group}: the partitions of this deployment are not known yet"
            return dg.SensorResult(skip_reason=reason, cursor=context.cursor)
        if definition is not None:
            refuse_unequal(leading_key(self.asset), view)
        growth = None if definition is None else compare(name, keys, view.partitions)
        rules = self.rules(scaling.partitions_at_once)
        return self._decide(context, target, view, growth, running, owned, rules)

    def _owned(self, target: Target, view: BrokerView) -> frozenset[Partition] | None:
        if self.ownership is None:
            return self.share.owned(target, view.partitions)
        return owned_by(self.ownership)

    def _target(self, context: dg.SensorEvaluationContext, source: KafkaSource) -> tuple[Target, PartitionScaling]:
        key = leading_key(self.asset)
        group = source.group(key)
        scaling = scaling_of(self.asset.metadata_by_key.get(key), source.scaling)
        topics = topics_read(self.asset, context.repository_def)
        return Target(key, group, source.policy(group, scaling), topics, tuple(self.asset.keys)), scaling

    def _downstream(self, context: dg.SensorEvaluationContext, source: KafkaSource) -> Downstream | None:
        if self.backpressure is None:
            return None
        key = self.backpressure.asset
        repository = context.repository_def
        found = repository.assets_defs_by_key.get(key) if repository is not None else None
        if found is None:
            shown_key = key.to_user_string()
            shown = leading_key(self.asset).to_user_string()
            msg = f"the sensor of {shown}: its backpressure asset {shown_key} does not exist"
            raise ConfigError(msg, fix="pass an asset of the same Definitions to backpressure=")
        return Downstream(source.group(leading_key(found)), topics_read(found, repository))

    def _decide(
        self,
        context: dg.SensorEvaluationContext,
        target: Target,
        view: BrokerView,
        growth: Growth | None,
        running: Sequence[RunInFlight],
        owned: frozenset[Partition] | None,
        rules: Rules,
    ) -> dg.SensorResult:
        now_s = self.clock()
        cursor = Cursor.from_text(context.cursor)
        candidates = make_candidates(context.instance, target, view, growth, running, owned, cursor, now_s)
        backpressured = (
            self.backpressure is not None
            and view.downstream_lag is not None
            and view.downstream_lag > self.backpressure.max_lag
        )
        decision = decide(
            candidates,
            rules,
            now_s,
            in_flight=[max(len(run.keys), 1) for run in running],
            after=cursor.after,
            backpressured=backpressured,
        )
        problems = problems_of(target, candidates, decision, growth)
        problems += problems_of_runs(
            running, lost_runs(context.instance, [run.run_id for run in running], clock=self.clock)
        )
        summary = summary_of(candidates, decision, growth, view.downstream_lag)
        self._log(context, target, summary, unreported(problems, cursor))
        resumed = [planned.range for c in candidates for planned in c.ranges if planned.resumed]
        if resumed:
            context.log.warning("%s", resumption_of(target.group, resumed))
        saturated = log_saturated(target, candidates, decision, cursor.saturated, clock=self.clock)
        owner = self.share.tags() if self.ownership is None else tags_of_owner(self.ownership)
        requests = [run_request(context.instance, target, taken, owner) for taken in decision.runs]
        self.share.requested(requests, [[candidate.number for candidate in taken] for taken in decision.runs])
        reason = None
        if not requests:
            reason = "\n".join(filter(None, [f"group {target.group}: {shown(summary)}", problem_text(problems)]))
            if backpressured and self.backpressure is not None:
                behind, limit = self.backpressure.asset.to_user_string(), self.backpressure.max_lag
                reason += f"\nbackpressure: the lag of {behind} is {view.downstream_lag:,} offsets, limit {limit:,}"
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=reason,
            dynamic_partitions_requests=growth.requests() if growth is not None else [],
            cursor=replace(
                _remembered(candidates, decision, problems, rules, summary, now_s), saturated=saturated
            ).to_text(),
        )

    def _log(
        self, context: dg.SensorEvaluationContext, target: Target, summary: Mapping[str, Any], new: Sequence[Problem]
    ) -> None:
        context.log.info("tick of group %s on %s: %s", target.group, ", ".join(target.topics), shown(summary))
        if new:
            context.log.error("group %s: operator action needed:\n%s", target.group, problem_text(new))
            # Log collectors read Python loggers, not the logs of ticks.
            logger.error("group %s: operator action needed:\n%s", target.group, problem_text(new))


def owned_by(ownership: Ownership | Callable[[], frozenset[Partition] | None]) -> frozenset[Partition] | None:
    """Return the owned partitions from an object with ``owned()``, or from a function."""
    return ownership.owned() if isinstance(ownership, Ownership) else ownership()


def tags_of_owner(ownership: object) -> dict[str, str]:
    """Return the ownership tags for the requested runs; none unless the owner is a `ConsumerGroupOwnership`."""
    return tags_of(ownership) if isinstance(ownership, ConsumerGroupOwnership) else {}


def _remembered(
    candidates: Sequence[Candidate],
    decision: Decision,
    problems: Sequence[Problem],
    rules: Rules,
    summary: Mapping[str, Any],
    now_s: float,
) -> Cursor:
    seen = {
        WHOLE if c.number is None else c.number: Seen(place_of(c.ranges), c.first_seen_s)
        for c in candidates
        if rules.max_wait_s is not None and 0 < c.waiting_offsets < rules.min_records
    }
    return Cursor(
        seen=seen,
        reported={problem.number: problem.what for problem in problems},
        after=decision.after,
        summary={"at": round(now_s), **summary},
    )
