"""A principal without one of the documented ACLs: the run fails, and the error names the ACL."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from typer.testing import CliRunner

from kpipe_platform.cli.main import app
from kpipe_platform.errors import AuthorizationFailedError

from .conftest import PASSWORD, Acl, Shop, Way

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

GUIDE = Path(__file__).parents[2] / "docs/guides/connection.md"
KINDS = {
    ResourceType.TOPIC: "topic",
    ResourceType.GROUP: "group",
    ResourceType.TRANSACTIONAL_ID: "transactional id",
}


def expected(acl: Acl, *, described: bool) -> str:
    """What the error says about a missing ACL.

    Without the right to describe a resource, the first call that is denied is one that needs only that.
    """
    # DESCRIBE_CONFIGS becomes DescribeConfigs.
    operation = "".join(word.capitalize() for word in acl.operation.name.split("_"))
    if operation in ("Read", "Write") and not described:
        operation = f"({operation}|Describe)"
    # In a transaction, librdkafka does not report which topic was denied.
    return rf"grant {operation} on {KINDS[acl.kind]} (\S+, )*{re.escape(acl.name)}"


def check_each(shop: Shop, acls: list[Acl], act: Callable[[], object]) -> None:
    """Take each ACL away, with and without the right to describe the resource."""
    principal, cluster = shop.way.principal, shop.cluster
    for acl in acls:
        cluster.revoke(principal, acl)
        for described in (False, True):
            rest = [replace(acl, operation=AclOperation.DESCRIBE)] if described else []
            cluster.grant(principal, rest)
            with pytest.raises(AuthorizationFailedError, match=expected(acl, described=described)):
                act()
            assert shop.read(shop.target) == []
            for each in rest:
                cluster.revoke(principal, each)
        cluster.grant(principal, [acl])


@pytest.mark.timeout(900)
def test_a_run_without_one_of_its_acls(way: Callable[..., Way], make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(way("SCRAM", request_timeout_s=5))
    principal, cluster = shop.way.principal, shop.cluster
    cluster.grant(principal, shop.acls)
    shop.send(b'{"id": 1}', b'{"id": "two"}')
    check_each(shop, shop.acls, shop.run)
    shop.run()
    assert shop.read(shop.target) == [{"id": 1}]


@pytest.mark.timeout(900)
def test_a_redrive_without_one_of_its_acls(way: Callable[..., Way], make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(way("SCRAM", request_timeout_s=5))
    principal, cluster = shop.way.principal, shop.cluster
    cluster.grant(principal, shop.acls)
    shop.send(b'{"id": "two"}')
    shop.run()
    # The dead letter can be written, but no longer what the run needed beside it.
    for acl in shop.acls:
        cluster.revoke(principal, acl)
    cluster.grant(principal, shop.redrive_acls)
    check_each(shop, shop.redrive_acls, shop.redrive)
    assert shop.redrive()["sent"] == 1


@pytest.mark.timeout(600)
def test_a_tick_and_commands_without_one_of_their_acls(
    way: Callable[..., Way], make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_shop(way("SCRAM", request_timeout_s=5))
    principal, cluster = shop.way.principal, shop.cluster
    for name, value in {
        "KAFKA_BOOTSTRAP_SERVERS": shop.way.connection.bootstrap_servers,
        "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "KAFKA_SASL_USERNAME": principal.removeprefix("User:"),
        "KAFKA_SASL_PASSWORD": PASSWORD,
    }.items():
        monkeypatch.setenv(name, value)

    def tick() -> str:
        shop.tick()
        return shop.skip_reason or ""

    def command(*words: str) -> str:
        return " ".join(CliRunner().invoke(app, list(words)).output.split())

    cluster.grant(principal, shop.acls)
    shop.send(b'{"id": 1}')
    source, write, configs, *_, groups, _ids = shop.acls
    show = ("offsets", "show", f"{shop.prefix}.priced", shop.source)
    for acl, ways in {
        source: [tick, lambda: command(*show)],
        groups: [tick, lambda: command(*show)],
        write: [lambda: command("topics", "describe", shop.target)],
        configs: [lambda: command("topics", "describe", shop.target)],
    }.items():
        cluster.revoke(principal, acl)
        for act in ways:
            assert re.search(expected(acl, described=False), act())
        cluster.grant(principal, [acl])
    assert len(shop.tick()) == 1


def test_the_documented_acls_are_those_of_the_tests() -> None:
    rows = re.findall(
        r"^\| (.+?) \| ([\w, ]+) \| .* \|$", GUIDE.read_text(encoding="utf-8").partition("## ACLs")[2], re.M
    )
    documented = {resource: operations for resource, operations in rows if resource != "resource"}
    assert documented == {
        "source topics": "Read",
        "destination and dead-letter topics": "Write, DescribeConfigs",
        "the same topics": "Create",
        "groups `shop.*`: `{group}` of each asset, `{group}.spark*`, and `{group}.owners`": "Read",
        "transactional ids `shop.*`: `{group}/{topic}/{partition}`, `/all`, `.probe`": "Write",
    }
