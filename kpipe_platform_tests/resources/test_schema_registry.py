"""The schema registry as a part of a connection; its secrets are shown nowhere."""

from __future__ import annotations

import json
import pickle
from typing import Any

import dagster as dg
import pytest

from kpipe_platform import KafkaConnection, KafkaDestination, KafkaSource, SchemaRegistry
from kpipe_platform.errors import ConfigError
from kpipe_platform.registry.settings import RegistrySettings
from kpipe_platform.testing.registry.embedded import EmbeddedRegistry

PASSWORD = "s3cret-of-ann"


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> dg.EnvVar:
    monkeypatch.setenv("TEST_REGISTRY_PASSWORD", PASSWORD)
    return dg.EnvVar("TEST_REGISTRY_PASSWORD")


def connection(registry: Any) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers="b:9092", schema_registry=registry)


def test_a_connection_without_a_registry() -> None:
    settings = KafkaConnection(bootstrap_servers="b:9092").settings
    assert settings.schema_registry is None
    assert settings.registry() is None


@pytest.mark.parametrize(
    "url", ["http://r1:8081,https://r2:8081/api/", ["http://r1:8081", "https://r2:8081/api/"]], ids=["text", "list"]
)
def test_several_addresses(url: Any) -> None:
    registry = connection(SchemaRegistry(url=url)).settings.schema_registry
    assert registry is not None
    assert registry.urls == ("http://r1:8081", "https://r2:8081/api")


@pytest.mark.parametrize("name", ["password", "bearer_token", "ssl_key_password"])
def test_a_plain_secret_is_refused_because_dagster_would_show_it(name: str) -> None:
    with pytest.raises(ConfigError, match=rf'{name}=dg\.EnvVar\("REGISTRY_{name.upper()}"\)') as caught:
        SchemaRegistry(url="http://r:8081", **{name: PASSWORD})
    assert PASSWORD not in str(caught.value)


def test_other_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"KafkaConnection\(schema_registry=\.\.\.\) is a str, not a SchemaRegistry"):
        connection("http://r:8081")
    with pytest.raises(ConfigError, match=r"did you mean 'url'"):
        SchemaRegistry(urls="http://r:8081")


def test_secrets_are_read_late_and_shown_nowhere(password: dg.EnvVar) -> None:
    given = connection(SchemaRegistry(url="http://r:8081", username="ann", password=password))
    settings = given.settings
    assert settings.schema_registry == RegistrySettings("http://r:8081", username="ann", password=PASSWORD)
    shown = [repr(given), str(given.schema_registry), repr(settings), repr(settings.schema_registry)]
    assert PASSWORD not in " ".join(shown) + str(settings.describe()) + str(settings.schema_registry.describe())
    assert settings.describe()["schema_registry"]["password"] == "**********"
    assert settings.redact(f"refused {PASSWORD}") == "refused **********"
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_missing_variable_says_which() -> None:
    given = connection(SchemaRegistry(url=dg.EnvVar("NOT_SET_ANYWHERE")))
    with pytest.raises(ConfigError, match=r"SchemaRegistry\.url.*NOT_SET_ANYWHERE") as caught:
        _ = given.settings
    assert "export NOT_SET_ANYWHERE=" in str(caught.value)


@pytest.mark.parametrize("holder", [KafkaSource, KafkaDestination])
def test_dagster_resolves_it_within_other_resources_and_stores_only_the_variables(
    password: dg.EnvVar, holder: type[KafkaSource] | type[KafkaDestination]
) -> None:
    seen: list[Any] = []

    @dg.asset
    def reads(kafka: dg.ResourceParam[Any]) -> None:
        seen.append(kafka.connection_settings.schema_registry)

    registry = SchemaRegistry(url="http://r:8081", username="ann", password=password)
    defs = dg.Definitions([reads], resources={"kafka": holder(connection=connection(registry))})
    with dg.DagsterInstance.ephemeral() as instance:
        result = defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
        events = instance.all_logs(result.run_id)
        stored = json.dumps([str(event) for event in events]) + str(instance.get_run_by_id(result.run_id))
    assert seen == [RegistrySettings("http://r:8081", username="ann", password=PASSWORD)]
    assert PASSWORD not in stored
    top = defs.get_repository_def().get_top_level_resources()["kafka"]
    assert PASSWORD not in str(top.config_schema.default_value)


def test_configured_at_launch(password: dg.EnvVar) -> None:
    seen: list[Any] = []

    @dg.asset
    def reads(connection: KafkaConnection) -> None:
        seen.append(connection.settings.schema_registry)

    registry = SchemaRegistry.configure_at_launch()
    given = connection(registry)
    with pytest.raises(ConfigError, match="configured at launch"):
        _ = given.settings
    defs = dg.Definitions([reads], resources={"registry": registry, "connection": given})
    config = {"url": "http://r:8081", "username": "ann", "password": {"env": "TEST_REGISTRY_PASSWORD"}}
    run_config = {"resources": {"registry": {"config": config}}}
    defs.resolve_implicit_global_asset_job_def().execute_in_process(run_config=run_config)
    assert seen == [RegistrySettings("http://r:8081", username="ann", password=PASSWORD)]
    refused = {"resources": {"registry": {"config": {**config, "password": PASSWORD + "2"}}}}
    with pytest.raises(dg.DagsterResourceFunctionError) as caught:
        defs.resolve_implicit_global_asset_job_def().execute_in_process(run_config=refused)
    assert "SchemaRegistry(password=...) is a plain value" in str(caught.value.__cause__)
    assert PASSWORD not in str(caught.value) + str(caught.value.__cause__)


def test_a_client_of_the_registry(schema_registry: EmbeddedRegistry) -> None:
    registry = SchemaRegistry(url=schema_registry.url)
    assert registry.client().versions("nothing-value") == ()
    assert connection(registry).settings.registry() is registry.client()
