"""``@kafka_asset``: a stage over slices of Kafka topics."""

from __future__ import annotations

import inspect
import keyword
import typing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from kpipe_platform.assets.source import Source, declared_metadata, sources_of
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.codecs.topics import KafkaTopics
from kpipe_platform.errors import ConfigError, OffsetsNotStoredError
from kpipe_platform.io_managers.kafka import StoresOffsets
from kpipe_platform.io_managers.results import outputs_by_name
from kpipe_platform.io_managers.step import (
    ASSET_METADATA,
    READ_FEED,
    read_of,
    refuse_unknown,
    topic_of,
)
from kpipe_platform.kafka.admin.groups import group_name
from kpipe_platform.kafka.admin.topics import unequal_partitions
from kpipe_platform.metadata_keys import FORM, LIMIT, ON_FAULT, READ, SCALING, TOPIC, TOPICS
from kpipe_platform.partitions.definition import kafka_partitions
from kpipe_platform.partitions.pools import kafka_pool
from kpipe_platform.policies.actions import FaultPolicies
from kpipe_platform.policies.bounds import is_count, is_positive
from kpipe_platform.policies.faults import FaultAction
from kpipe_platform.policies.limits import DeadLetterLimit
from kpipe_platform.resources.scaling import PartitionScaling
from kpipe_platform.slices.settings import RunLimits
from kpipe_platform.slices.values import DeferredStage, TopicInput, WrittenOutput
from kpipe_platform.spark.stage.convert import requested_form

_CONTEXTS = ("context", "_context", "_", "__")


def kafka_asset(
    *,
    source: Source | Sequence[Source],
    topic: KafkaTopic | KafkaTopics | None = None,
    on_fault: FaultAction | str | FaultPolicies | None = None,
    isolate: bool | None = None,
    max_dead_letter_ratio: float | None = None,
    min_dead_letters: int | None = None,
    partitioned: bool = True,
    scaling: PartitionScaling | None = None,
    max_slices: int | None = 1,
    max_duration_s: float | None = None,
    linger_s: float | None = None,
    io_manager_key: str | None = None,
    io_manager_def: object | None = None,
    ins: Mapping[str, dg.AssetIn] | None = None,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    pool: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    **asset_kwargs: Any,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Declare an asset whose function is a stage: it converts the DataFrame of a slice to the DataFrame of its output.

    The stage is called once for each slice, so that each slice commits separately. The stage must be pure.

    Args:
        source: The topic asset(s) to read: from ``kafka_topic_asset``, a ``dagster.AssetSpec`` with the metadata of a
            KafkaTopic, or Kafka assets. The function has one parameter per source, named after the last part of the
            asset key, or after all parts joined by ``_`` if two keys end with the same part. The annotation selects
            the input type (Spark, pandas, pyarrow, polars, list[KafkaRecord]). The asset has the partitions of the
            first source's topic. Several sources must have the same number of partitions; their offsets are committed
            together.
        topic: Destination topic, or ``KafkaTopics`` to choose one of several topics for each row by a column. None:
            ``io_manager_key`` or ``io_manager_def`` stores the output.
        on_fault: Fault action for failed records, or ``FaultPolicies`` with an action and retries per component. None:
            the setting of the IO manager, STOP by default.
        isolate: Whether the stage may be called again on parts of a slice that it fails on, to find the failing
            records and apply the fault action to them. Use False for a stage that needs the whole slice, for example
            to aggregate it; its slices fail as a whole. None: True for one source, False for several.
        max_dead_letter_ratio: Maximum share of a slice's records that may be dead-lettered or skipped, above 0 and up
            to 1. Above it, the run fails before it commits. None: the limit of the dead-letter destination.
        min_dead_letters: Minimum number of failed records before the share is checked. None: the minimum of the
            dead-letter destination.
        partitioned: Whether the asset has one Dagster partition per Kafka partition. False: one materialization takes
            a slice of every Kafka partition in one transaction. Default True.
        scaling: Limits of a slice and of a range run; None: the source's.
        max_slices: Maximum number of consecutive slices per run; None: until caught up. Default 1.
        max_duration_s: Time after which the run starts no further slice, seconds. It also ends a wait for new records.
            None: no limit.
        linger_s: How long a run that has caught up waits for new records, seconds. The run processes new records as
            they arrive, and ends if none arrive for this long. None: the run ends when it has caught up. Requires
            ``max_slices`` above 1 or None.
        io_manager_key: Resource key of the IO manager for the output; None: ``kafka_io_manager`` if ``topic`` is given.
        io_manager_def: The IO manager, instead of a resource key.
        ins: AssetIn for other inputs, for example ``table_input()``.
        name: Asset name; None: the function's name.
        key_prefix: Prefix of the asset key.
        pool: Dagster concurrency pool of the asset's runs. Everything with the same pool name shares it. None: a
            separate pool, ``kafka_pool(asset_key)``, which the run queue uses to keep two runs of one partition apart.
            That pool has no limit until you set one.
        metadata: Further metadata.
        **asset_kwargs: Further arguments of ``dagster.asset``.

    Raises:
        OffsetsNotStoredError: No IO manager would store the offsets.
        ConfigError: The function has no parameter for a source, or an argument is invalid.
    """
    sources = sources_of(source, "@kafka_asset(source=...)")
    _check(sources, topic, io_manager_key, io_manager_def)
    own: dict[str, Any] = topic.as_metadata() if topic is not None else {}

    def make(declared: DeclaredStage) -> dg.AssetsDefinition:
        arguments = declared.arguments
        if io_manager_def is not None:
            arguments["io_manager_def"] = io_manager_def
        else:
            arguments["io_manager_key"] = io_manager_key or "kafka_io_manager"
        own_name = name or declared.name
        prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or ())
        # Validate when the asset is defined, not in the first run.
        group_name("", [*prefix, own_name])
        made: dg.AssetsDefinition = dg.asset(
            name=own_name,
            key_prefix=key_prefix,
            pool=pool or kafka_pool(dg.AssetKey([*prefix, own_name])),
            ins=declared.inputs,
            metadata=joined_metadata("@kafka_asset", {**own, **declared.metadata}, metadata),
            description=arguments.pop("description", None) or declared.doc,
            kinds=arguments.pop("kinds", {"kafka", "spark"}),
            **arguments,
        )(declared.compute)
        return made

    return stage_decorator(
        "@kafka_asset",
        sources,
        make,
        on_fault=on_fault,
        isolate=isolate,
        max_dead_letter_ratio=max_dead_letter_ratio,
        min_dead_letters=min_dead_letters,
        partitioned=partitioned,
        scaling=scaling,
        limits=run_limits("@kafka_asset", max_slices, max_duration_s, linger_s),
        ins=ins or {},
        asset_kwargs=asset_kwargs,
    )


@dataclass(frozen=True)
class DeclaredStage:
    """A stage with everything that its asset declares.

    Args:
        name: Name of the function.
        doc: Its docstring.
        compute: The function that Dagster calls.
        inputs: Its inputs.
        metadata: Metadata of the asset.
        arguments: Further arguments for Dagster.
    """

    name: str
    doc: str | None
    compute: Callable[..., Any]
    inputs: dict[str, dg.AssetIn]
    metadata: dict[str, Any]
    arguments: dict[str, Any]


def stage_decorator(
    where: str,
    sources: Sequence[Source],
    make: Callable[[DeclaredStage], dg.AssetsDefinition],
    *,
    on_fault: FaultAction | str | FaultPolicies | None,
    isolate: bool | None,
    max_dead_letter_ratio: float | None,
    min_dead_letters: int | None,
    partitioned: bool,
    scaling: PartitionScaling | None,
    limits: RunLimits,
    ins: Mapping[str, dg.AssetIn],
    asset_kwargs: Mapping[str, Any],
    outputs: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Create the decorator of a stage.

    Args:
        where: Name of the decorator, for messages.
        sources: The topic assets to read.
        make: Makes the asset.
        on_fault: As for ``kafka_asset``, like all further arguments.
        isolate: See above.
        max_dead_letter_ratio: See above.
        min_dead_letters: See above.
        partitioned: See above.
        scaling: See above.
        limits: How many slices a run takes.
        ins: Other inputs.
        asset_kwargs: Further arguments for Dagster.
        outputs: Names of the outputs of a multi-asset; empty for a single asset.

    Raises:
        ConfigError: An argument is invalid.
    """
    feeds = _parameters(where, sources)
    _check_ins(where, ins, feeds)
    partitions = _partitions(where, sources) if partitioned else None
    if asset_kwargs.get("check_specs"):
        msg = f"{where}(check_specs=...): a stage returns rows and cannot return check results"
        raise ConfigError(msg, fix="use rule_checks, or define a separate @dagster.asset_check")
    if not partitioned and asset_kwargs.get("partitions_def") is not None:
        msg = f"{where} has both partitioned=False and partitions_def="
        raise ConfigError(msg, fix="remove one of them")
    if isolate and len(sources) > 1:
        msg = f"{where}(isolate=True) has several sources, whose slices cannot be split into matching parts"
        raise ConfigError(msg, fix="remove isolate=, or read one source")
    isolates = len(sources) == 1 if isolate is None else isolate
    bounds = {"ratio": max_dead_letter_ratio, "minimum": min_dead_letters}
    bounds = {name: value for name, value in bounds.items() if value is not None}
    # Validate when the asset is defined, not in the first run.
    DeadLetterLimit(**bounds)  # type: ignore[arg-type]

    def decorate(stage: Callable[..., Any]) -> dg.AssetsDefinition:
        hints = _hints(stage)
        parameters = list(inspect.signature(stage).parameters.values())
        _check_parameters(stage, feeds, parameters)
        inputs = dict(ins)
        # Copy for each stage, because one decorator may be applied to several stages.
        arguments = dict(asset_kwargs)
        if partitioned:
            arguments.setdefault("partitions_def", partitions)
        for parameter, asset in feeds.items():
            inputs[parameter] = dg.AssetIn(
                key=asset.key,
                metadata={READ: READ_FEED, FORM: requested_form(hints.get(parameter))},
                dagster_type=dg.Any,
                partition_mapping=_mapping(asset, arguments.get("partitions_def")),
            )
        extra: dict[str, Any] = {}
        if on_fault is not None:
            extra[ON_FAULT] = FaultPolicies.of(on_fault).to_config()
        if bounds:
            extra[LIMIT] = bounds
        if scaling is not None:
            extra[SCALING] = scaling.model_dump(mode="json")
        name = str(getattr(stage, "__name__", "stage"))
        compute = _compute(stage, set(feeds), parameters, hints, limits, isolates, outputs)
        return make(DeclaredStage(name, inspect.getdoc(stage), compute, inputs, extra, arguments))

    return decorate


def _hints(stage: Callable[..., Any]) -> dict[str, Any]:
    """Return the stage's annotations as objects.

    Raises:
        ConfigError: An annotation cannot be resolved at run time.
    """
    try:
        return typing.get_type_hints(stage)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        msg = f"cannot resolve the annotations of {getattr(stage, '__qualname__', 'the stage')}: {error}"
        raise ConfigError(
            msg,
            fix="kpipe needs annotations at run time: import their types outside `if TYPE_CHECKING:`",
        ) from error


def _compute(
    stage: Callable[..., Any],
    feeds: set[str],
    parameters: list[inspect.Parameter],
    hints: dict[str, Any],
    limits: RunLimits,
    isolates: bool,
    outputs: Sequence[str],
) -> Callable[..., Any]:
    """Create the function that Dagster calls. It has the stage's parameters and returns the deferred stage."""

    def compute(*args: Any, **inputs: Any) -> Any:
        bound = inspect.Signature(parameters).bind(*args, **inputs).arguments
        topics = {name: bound[name] for name in feeds}
        if not any(isinstance(each, TopicInput) for each in topics.values()):
            # Called directly, for example in a unit test: call the stage with the given DataFrames.
            result = stage(**bound)
            return tuple(outputs_by_name(result, outputs, compute.__name__).values()) if outputs else result
        others = {name: value for name, value in bound.items() if name not in feeds}
        deferred = DeferredStage(topics, lambda frames: stage(**others, **frames), limits, isolates)
        return deferred if len(outputs) < 2 else (deferred, *[WrittenOutput()] * (len(outputs) - 1))

    compute.__name__ = getattr(stage, "__name__", "stage")
    compute.__doc__ = stage.__doc__
    compute.__module__ = stage.__module__
    own = [p.replace(annotation=Any if p.name in feeds else hints.get(p.name, p.annotation)) for p in parameters]
    compute.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]  # what Dagster reads
    compute.__annotations__ = {p.name: p.annotation for p in own if p.annotation is not inspect.Parameter.empty}
    return compute


def _check(
    sources: list[Source],
    topic: KafkaTopic | KafkaTopics | None,
    io_manager_key: str | None,
    io_manager_def: object | None,
) -> None:
    check_sources("@kafka_asset", sources)
    if topic is None and io_manager_key is None and io_manager_def is None:
        msg = "@kafka_asset has neither a topic nor an IO manager: nothing would store its output and its offsets"
        raise OffsetsNotStoredError(
            msg, fix='set topic=KafkaTopic("name"), or io_manager_key= to the key of an OffsetCommittingIOManager'
        )
    if io_manager_def is not None and not isinstance(io_manager_def, StoresOffsets):
        msg = f"@kafka_asset's io_manager_def is {type(io_manager_def).__name__}, which does not store offsets"
        raise OffsetsNotStoredError(msg, fix="wrap it: OffsetCommittingIOManager(inner=...)")
    if isinstance(io_manager_def, StoresOffsets) and topic is not None:
        shown = topic.name if isinstance(topic, KafkaTopic) else ", ".join(topic.by_value)
        io_manager_def.check_asset(f"of @kafka_asset(topic={shown!r})", topic.as_metadata())


def joined_metadata(where: str, own: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Add a user's metadata to what the other arguments of an asset declare.

    Raises:
        ConfigError: It has an unknown ``kpipe/`` name, or one that another argument declares.
    """
    refuse_unknown(given, ASSET_METADATA, where)
    both = [name for name in given or {} if name in own]
    if both:
        msg = f"{where}(metadata=...) has {', '.join(map(repr, both))}, which another argument declares"
        raise ConfigError(msg, fix="declare it once: remove it from metadata=")
    return {**own, **(given or {})}


def check_sources(where: str, sources: Sequence[Source]) -> None:
    """Check that sources declare topics that can be read.

    Raises:
        ConfigError: There is no source, or one has no readable topic.
    """
    if not sources:
        msg = f"{where} has no source"
        raise ConfigError(msg, fix="set source=kafka_topic_asset(...)")
    for source in sources:
        metadata = declared_metadata(source)
        if TOPIC not in metadata and TOPICS not in metadata:
            msg = f"{where}(source=...): asset {source.key.to_user_string()} does not declare a topic"
            raise ConfigError(
                msg, fix="use kafka_topic_asset(...), or add metadata=KafkaTopic(...).as_metadata() to the asset"
            )
        topic_of(metadata, source.key).require_readable()


def _partitions(where: str, sources: Sequence[Source]) -> dg.PartitionsDefinition[str] | None:
    """Return the partitions of the first source's topic.

    Raises:
        ConfigError: Sources with fixed partitions have different numbers of partitions.
    """
    found = [_partitions_of(source) for source in sources]
    counts = {
        source.key.to_user_string(): len(each.get_partition_keys())
        for source, each in zip(sources, found, strict=True)
        if isinstance(each, dg.StaticPartitionsDefinition)
    }
    if len(set(counts.values())) > 1:
        raise unequal_partitions(f"{where}(source=...)", counts)
    return found[0]


def _partitions_of(source: Source) -> dg.PartitionsDefinition[str] | None:
    """Return the partitions of a source's topic. A Kafka asset itself has the partitions of the topic that it reads."""
    own: dg.PartitionsDefinition[str] | None = source.partitions_def
    topic = topic_of(declared_metadata(source), source.key)
    if isinstance(own, dg.DynamicPartitionsDefinition):
        return kafka_partitions(topic.name)
    if isinstance(own, dg.StaticPartitionsDefinition) and topic.create is not None:
        return kafka_partitions(topic.name, topic.create.partitions)
    return own


def _mapping(source: Source, own: dg.PartitionsDefinition[str] | None) -> dg.PartitionMapping | None:
    """Return the partition mapping from a source to the asset; None: Dagster's default, one to one."""
    is_topic = isinstance(source, dg.AssetSpec) or not source.is_materializable
    if own is None or is_topic or own == source.partitions_def:
        return None
    # The outputs of one partition of a Kafka asset may be in any partition of its destination topic.
    return dg.AllPartitionMapping()


def run_limits(where: str, max_slices: int | None, max_duration_s: float | None, linger_s: float | None) -> RunLimits:
    """Return how many slices a run takes.

    Raises:
        ConfigError: A limit is out of range.
    """
    if max_slices is not None and not is_count(max_slices, 1):
        msg = f"{where}(max_slices={max_slices!r}) is out of range"
        raise ConfigError(msg, fix="set it to 1 or more, or to None to process slices until the run has caught up")
    if max_duration_s is not None and not is_positive(max_duration_s):
        msg = f"{where}(max_duration_s={max_duration_s}) is out of range"
        raise ConfigError(msg, fix="set it to more than 0 seconds, or leave it out")
    if linger_s is not None and not is_positive(linger_s):
        msg = f"{where}(linger_s={linger_s}) is out of range"
        raise ConfigError(msg, fix="set it to more than 0 seconds, or leave it out")
    if linger_s is not None and max_slices == 1:
        msg = f"{where}(linger_s={linger_s}) waits for further slices, but max_slices=1 allows only one"
        raise ConfigError(msg, fix="set max_slices=None, or max_slices to 2 or more")
    return RunLimits(max_slices, max_duration_s, linger_s)


def _check_parameters(
    stage: Callable[..., Any], feeds: Mapping[str, Source], parameters: list[inspect.Parameter]
) -> None:
    names = [p.name for p in parameters]
    name = getattr(stage, "__name__", "stage")
    for parameter, asset in feeds.items():
        if parameter not in names:
            msg = f"{name}({', '.join(names)}) has no parameter for its source {asset.key.to_user_string()}"
            raise ConfigError(msg, fix=f"add a parameter named {parameter!r}")
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) and p.name not in _CONTEXTS:
            msg = f"{name} has the parameter {p}, which Dagster cannot pass"
            raise ConfigError(msg, fix="replace it with named parameters")


def _parameters(where: str, sources: Sequence[Source]) -> dict[str, Source]:
    """Return the sources by their parameter names in the stage.

    Raises:
        ConfigError: Two sources have the same parameter name, or a source's name is not valid for a parameter.
    """
    endings = Counter(_as_name(source.key.path[-1:]) for source in sources)
    feeds: dict[str, Source] = {}
    for source in sources:
        ending = _as_name(source.key.path[-1:])
        name = ending if endings[ending] == 1 else _as_name(source.key.path)
        shown = source.key.to_user_string()
        if name in feeds:
            other = feeds[name].key.to_user_string()
            msg = f"{where}(source=...): sources {other} and {shown} have the same parameter name, {name!r}"
            raise ConfigError(msg, fix="list each source once, or rename one of them: kafka_topic_asset(name=...)")
        if not name.isidentifier() or keyword.iskeyword(name) or name in (*_CONTEXTS, "config"):
            msg = (
                f"{where}(source=...): the parameter of source {shown} would be named {name!r}, which is reserved "
                "or not a Python identifier"
            )
            raise ConfigError(msg, fix="rename the source: kafka_topic_asset(name=...)")
        feeds[name] = source
    return feeds


def _check_ins(where: str, ins: Mapping[str, dg.AssetIn], feeds: Mapping[str, Source]) -> None:
    """Reject an input with the name or the asset key of a source: Dagster allows one input per asset."""
    keys = {source.key for source in feeds.values()}
    for name, given in ins.items():
        read_of(given.metadata, f"{where}(ins=...): input {name!r}")
        key = given.key or dg.AssetKey([*(given.key_prefix or []), name])
        if name in feeds:
            msg = (
                f"{where}(ins=...): input {name!r} has the same name as the parameter of source "
                f"{feeds[name].key.to_user_string()}"
            )
            raise ConfigError(msg, fix="rename the input and its parameter")
        if key in keys:
            msg = f"{where}(ins=...): input {name!r} is asset {key.to_user_string()}, which is already a source"
            raise ConfigError(
                msg, fix="remove the input; to read the topic as a table too, declare a second topic asset for it"
            )


def _as_name(parts: Sequence[str]) -> str:
    return "_".join("".join(c if c.isalnum() else "_" for c in part) for part in parts)
