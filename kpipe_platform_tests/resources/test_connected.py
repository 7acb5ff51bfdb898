"""One connection, given once: the parts of a KafkaIOManager inherit it or have another, however it is configured."""

# No postponed annotations here: Dagster reads the classes of an asset's arguments.

from typing import Any, ClassVar

import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource, PySparkResource

from kpipe_platform import (
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    OffsetCommittingIOManager,
    RawCodec,
    SparkEngine,
    kafka_offset_sensor,
    kafka_topic_asset,
    redrive_job,
)
from kpipe_platform.errors import ConfigError
from kpipe_platform.resources.lookup import source_of

ONE, OTHER = "one:9092", "other:9092"


def at(servers: Any = ONE, **how: Any) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=servers, **how)


def manager(**how: Any) -> KafkaIOManager:
    return KafkaIOManager(**{"spark": SparkEngine(), **how})


def servers(found: KafkaIOManager) -> dict[str, str | None]:
    """The brokers that each part of an IO manager uses."""
    parts = {"source": found.source, "destination": found.destination, "dead_letter": found.dead_letter}
    return {n: p.connection_settings.bootstrap_servers if p is not None else None for n, p in parts.items()}


def in_a_run(
    resources: dict[str, Any], run_config: dict[str, Any] | None = None, key: str = "kafka_io_manager"
) -> dict[str, Any]:
    """What a step of a run finds, with the resources as Dagster resolves them."""
    seen: dict[str, Any] = {}

    @dg.asset(required_resource_keys={key})
    def looks(context: dg.AssetExecutionContext) -> None:
        found = getattr(context.resources, key)
        seen.update(servers(found) | {"manager": found})

    defs = dg.Definitions([looks], resources=resources)
    dg.Definitions.validate_loadable(defs)
    with dg.DagsterInstance.ephemeral() as instance:
        job = defs.resolve_implicit_global_asset_job_def()
        job.execute_in_process(instance=instance, run_config=run_config)
    return seen


def cause_of(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


class TestInheritance:
    def test_the_parts_inherit_the_connection(self) -> None:
        made = manager(
            connection=at(),
            source=KafkaSource(group_prefix="shop"),
            destination=KafkaDestination(delivery="at_least_once"),
            dead_letter=KafkaDeadLetterDestination(create_topic=True),
        )
        assert servers(made) == dict.fromkeys(("source", "destination", "dead_letter"), ONE)
        assert made.source.group_prefix == "shop"
        assert made.destination.delivery == "at_least_once"
        assert made.dead_letter.create_topic

    def test_a_part_keeps_its_own(self) -> None:
        made = manager(
            connection=at(),
            source=KafkaSource(connection=at(OTHER)),
            destination=KafkaDestination(),
            dead_letter=KafkaDeadLetterDestination(connection=at(OTHER)),
        )
        assert servers(made) == {"source": OTHER, "destination": ONE, "dead_letter": OTHER}

    def test_source_and_destination_may_be_left_out(self) -> None:
        made = manager(connection=at())
        assert servers(made) == {"source": ONE, "destination": ONE, "dead_letter": None}
        assert made.source.group_prefix == "kpipe"

    def test_a_destination_of_none_only_reads(self) -> None:
        assert manager(connection=at(), destination=None).destination is None
        assert in_a_run({"kafka_io_manager": manager(connection=at(), destination=None)})["destination"] is None

    def test_a_connection_at_each_part_still_works(self) -> None:
        connection = at()
        only_reads = manager(source=KafkaSource(connection=connection))
        assert servers(only_reads) == {"source": ONE, "destination": None, "dead_letter": None}
        assert in_a_run({"kafka_io_manager": only_reads})["destination"] is None
        every = manager(
            source=KafkaSource(connection=connection),
            destination=KafkaDestination(connection=connection),
            dead_letter=KafkaDeadLetterDestination(connection=connection),
        )
        assert servers(every) == dict.fromkeys(("source", "destination", "dead_letter"), ONE)

    def test_the_part_that_was_given_is_not_changed(self) -> None:
        source = KafkaSource()
        manager(connection=at(), source=source)
        assert source.connection is None


class TestWhatIsMissingOrWrong:
    @pytest.mark.parametrize(
        ("how", "part"),
        [
            ({}, "source"),
            ({"source": KafkaSource()}, "source"),
            ({"source": KafkaSource(connection=at()), "destination": KafkaDestination()}, "destination"),
            (
                {"source": KafkaSource(connection=at()), "dead_letter": KafkaDeadLetterDestination()},
                "dead_letter",
            ),
            ({"source": KafkaSource.configure_at_launch(group_prefix="shop")}, "source"),
        ],
    )
    @pytest.mark.parametrize("define", [manager, lambda **how: KafkaIOManager.configure_at_launch(**how)])
    def test_no_connection_anywhere(self, define: Any, how: dict[str, Any], part: str) -> None:
        with pytest.raises(ConfigError, match=f"neither KafkaIOManager nor its {part} has a connection") as caught:
            define(**how)
        assert "KafkaIOManager(connection=KafkaConnection(bootstrap_servers=...)" in str(caught.value)

    @pytest.mark.parametrize(
        ("how", "says"),
        [
            ({"connection": ONE}, r"KafkaIOManager\(connection=\.\.\.\) is a str, not a KafkaConnection"),
            ({"connection": at(), "source": KafkaDestination()}, "is a KafkaDestination, not a KafkaSource"),
            ({"connection": at(), "dead_letter": at()}, "not a KafkaDeadLetterDestination"),
            ({"connection": at(), "spark": "local"}, "not a LazyPySparkResource or PySparkResource"),
            ({"connection": KafkaSource.configure_at_launch()}, "is a KafkaSource, not a KafkaConnection"),
            ({"connection": at(), "dead_letters": KafkaDeadLetterDestination()}, "did you mean 'dead_letter'"),
        ],
    )
    def test_another_kind_of_argument(self, how: dict[str, Any], says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            manager(**how)
        with pytest.raises(ConfigError, match=says):
            KafkaIOManager.configure_at_launch(**how)

    def test_a_part_refuses_what_is_no_connection(self) -> None:
        with pytest.raises(ConfigError, match=r"KafkaSource\(connection=\.\.\.\) is a str") as caught:
            KafkaSource(connection=ONE)
        assert "connection=KafkaConnection(...)" in str(caught.value)

    def test_a_part_by_itself_names_what_it_lacks(self) -> None:
        for part in (KafkaSource(), KafkaDestination(), KafkaDeadLetterDestination()):
            with pytest.raises(ConfigError, match="has no connection, and is not part") as caught:
                _ = part.connection_settings
            assert f"{type(part).__name__}(connection=KafkaConnection(" in str(caught.value)
        with pytest.raises(ConfigError, match="has no connection"):
            KafkaSource().watermarks("orders")

    def test_a_function_s_value_of_another_kind_is_refused_in_the_run(self) -> None:
        odd = dg.ResourceDefinition.hardcoded_resource("no connection")
        with pytest.raises(dg.DagsterError) as caught:
            in_a_run({"kafka_io_manager": manager(connection=odd)})
        assert "is a str, not a KafkaConnection" in str(cause_of(caught.value))


class TestInARun:
    def test_nested(self) -> None:
        made = manager(connection=at(), source=KafkaSource(connection=at(OTHER)))
        found = in_a_run({"kafka_io_manager": made})
        assert (found["source"], found["destination"]) == (OTHER, ONE)

    def test_environment_variables_are_read_then(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = manager(connection=at(dg.EnvVar("THE_BROKERS")), source=KafkaSource(group_prefix=dg.EnvVar("PREFIX")))
        monkeypatch.setenv("THE_BROKERS", OTHER)
        monkeypatch.setenv("PREFIX", "shop")
        found = in_a_run({"kafka_io_manager": made})
        assert (found["source"], found["destination"]) == (OTHER, OTHER)
        assert found["manager"].source.group_prefix == "shop"

    def test_a_secret_is_shown_nowhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("THE_PASSWORD", "s3cret")
        made = manager(
            connection=at(
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="PLAIN",
                sasl_username="ann",
                sasl_password=dg.EnvVar("THE_PASSWORD"),
            )
        )
        found = in_a_run({"kafka_io_manager": made})["manager"]
        assert found.source.connection.sasl_password == "s3cret"
        assert "s3cret" not in repr(made) + repr(found)

    @pytest.mark.parametrize("whole", [False, True])
    def test_the_connection_is_configured_at_launch(self, whole: bool) -> None:
        connection = KafkaConnection.configure_at_launch(client_id="shop")
        how = {"connection": connection, "spark": SparkEngine(), "source": KafkaSource(group_prefix="shop")}
        made = KafkaIOManager.configure_at_launch(**how) if whole else KafkaIOManager(**how)
        launched = {"resources": {"kafka_connection": {"config": {"bootstrap_servers": OTHER}}}}
        if whole:
            launched["resources"]["kafka_io_manager"] = {"config": {"on_fault": "skip"}}
        found = in_a_run({"kafka_connection": connection, "kafka_io_manager": made}, launched)
        assert (found["source"], found["destination"]) == (OTHER, OTHER)
        assert found["manager"].source.connection.client_id == "shop"
        assert found["manager"].on_fault == ("skip" if whole else "stop")

    def test_a_source_is_configured_at_launch_and_inherits(self) -> None:
        source = KafkaSource.configure_at_launch()
        found = in_a_run(
            {"kafka_source": source, "kafka_io_manager": manager(connection=at(), source=source)},
            {"resources": {"kafka_source": {"config": {"group_prefix": "launched"}}}},
        )
        assert (found["source"], found["manager"].source.group_prefix) == (ONE, "launched")

    def test_what_is_configured_at_launch_is_not_known_before(self) -> None:
        connection = KafkaConnection.configure_at_launch()
        with pytest.raises(ConfigError, match="available only within a run"):
            _ = manager(connection=connection).source.connection_settings

    def test_parts_that_are_also_bound_by_themselves(self) -> None:
        connection, source, spark = at(), KafkaSource(group_prefix="shop"), SparkEngine()
        bound = {"kafka_connection": connection, "kafka_source": source, "spark": spark}
        made = KafkaIOManager(connection=connection, source=source, spark=spark)
        assert in_a_run({**bound, "kafka_io_manager": made})["source"] == ONE
        seen: list[Any] = []

        @dg.asset
        def looks(kafka_source: KafkaSource, spark: LazyPySparkResource) -> None:
            seen.append(spark)
            with pytest.raises(ConfigError, match="has no connection, and is not part"):
                kafka_source.clients()

        dg.materialize([looks], resources=bound)
        assert isinstance(seen[0], SparkEngine)

    def test_an_io_manager_within_another_that_commits(self) -> None:
        class Rows(dg.ConfigurableIOManager):
            kafka: dg.ResourceDependency[KafkaIOManager]

            def load_input(self, context: dg.InputContext) -> Any:
                return None

            def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
                seen.update(servers(self.kafka))

        seen: dict[str, Any] = {}
        made = OffsetCommittingIOManager(inner=Rows(kafka=manager(connection=at())))

        @dg.asset(required_resource_keys={"kafka_io_manager"})
        def stored(context: dg.AssetExecutionContext) -> int:
            context.resources.kafka_io_manager.inner.handle_output(None, None)
            return 1

        dg.materialize([stored], resources={"kafka_io_manager": made, "io_manager": dg.InMemoryIOManager()})
        assert seen["source"] == ONE


class TestSecretsAtLaunch:
    GIVEN: ClassVar = {"bootstrap_servers": ONE, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}

    def launch(self, config: dict[str, Any], **given: Any) -> str | None:
        seen: list[str | None] = []

        @dg.asset
        def looks(connection: KafkaConnection) -> None:
            seen.append(connection.settings.sasl_password)

        dg.materialize(
            [looks],
            resources={"connection": KafkaConnection.configure_at_launch(sasl_username="ann", **given)},
            run_config={"resources": {"connection": {"config": {**self.GIVEN, **config}}}},
        )
        return seen[0]

    def test_by_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("THE_PASSWORD", "s3cret")
        assert self.launch({}, sasl_password=dg.EnvVar("THE_PASSWORD")) == "s3cret"
        assert self.launch({"sasl_password": {"env": "THE_PASSWORD"}}) == "s3cret"
        assert self.launch({"sasl_password": {"env": "THE_PASSWORD"}, "librdkafka": {"client.rack": "a"}}) == "s3cret"

    def test_a_subclass_keeps_its_name(self) -> None:
        class OurConnection(KafkaConnection):
            """The connection of one team."""

        made = OurConnection.configure_at_launch().resource_cls
        assert issubclass(made, OurConnection)
        assert (made.__name__, made.__module__, made.__doc__) == ("OurConnection", __name__, OurConnection.__doc__)

    def test_a_plain_value_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="plain value, which Dagster would show"):
            KafkaConnection.configure_at_launch(sasl_password="s3cret")
        with pytest.raises(dg.DagsterError) as caught:
            self.launch({"sasl_password": "s3cret"})
        assert '{"env": "KAFKA_SASL_PASSWORD"}' in str(cause_of(caught.value))


class Holder(dg.InMemoryIOManager):
    """An IO manager that is not kpipe's and has a source."""

    def __init__(self, source: KafkaSource) -> None:
        super().__init__()
        self.source = source


class TestUsers:
    def found(self, resource: Any) -> KafkaSource:
        with dg.build_sensor_context(resources={"kafka": resource}, definitions=dg.Definitions()) as context:
            return source_of(context.resources, "kafka", "a sensor")

    def test_a_sensor_or_check_takes_an_io_manager_or_a_source(self) -> None:
        for resource in (manager(connection=at(), source=KafkaSource()), KafkaSource(connection=at())):
            source = self.found(resource)
            assert source.connection_settings.bootstrap_servers == ONE

    def test_a_source_without_a_connection(self) -> None:
        with pytest.raises(ConfigError, match="KafkaSource has no connection") as caught:
            self.found(KafkaSource())
        assert "KafkaSource(connection=KafkaConnection(" in str(caught.value)

    def test_another_resource(self) -> None:
        with pytest.raises(ConfigError, match="a sensor needs a KafkaSource or a KafkaIOManager"):
            self.found(SparkEngine())

    def test_an_observation_names_what_its_source_lacks(self) -> None:
        topic = kafka_topic_asset("orders", value_codec=RawCodec(), partitions=1)
        refused = {
            "has no connection": Holder(source=KafkaSource()),
            "needs a KafkaIOManager, but": dg.InMemoryIOManager(),
        }
        for says, resource in refused.items():
            with pytest.raises(ConfigError, match=says):
                dg.materialize([topic], selection=[topic], resources={"kafka_io_manager": resource})

    def test_a_tick_names_what_its_source_lacks(self) -> None:
        @dg.asset
        def orders() -> None: ...

        sensor = kafka_offset_sensor(orders, resource_key="kafka")
        definitions = dg.Definitions([orders])
        with (
            dg.build_sensor_context(resources={"kafka": KafkaSource()}, definitions=definitions) as context,
            pytest.raises(ConfigError, match="KafkaSource has no connection"),
        ):
            sensor.evaluate_tick(context)

    def test_a_job_shares_the_connection_of_the_io_manager(self) -> None:
        connection = KafkaConnection.configure_at_launch()
        defs = dg.Definitions(
            jobs=[redrive_job()],
            resources={"kafka_connection": connection, "kafka_io_manager": manager(connection=connection)},
        )
        dg.Definitions.validate_loadable(defs)


def test_spark_resources_are_accepted_as_they_are() -> None:
    lazy, eager = LazyPySparkResource(spark_config={}), PySparkResource(spark_config={})
    assert manager(connection=at(), spark=lazy).spark is lazy
    assert manager(connection=at(), spark=eager).spark is eager
    engine = SparkEngine()
    assert manager(connection=at(), spark=engine).engine is engine
    with pytest.raises(ConfigError, match="PySparkResource starts its Spark session within a run"):
        _ = manager(connection=at(), spark=eager).engine.spark_session
