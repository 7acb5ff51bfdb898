"""A principal without one of the documented ACLs: the run fails, and the error names the ACL."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import ResourceType

from kpipe_platform.errors import AuthorizationFailedError

from .conftest import Acl, Shop, Way

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

GUIDE = Path(__file__).parents[2] / "docs/guides/connection.md"
KINDS = {
    ResourceType.TOPIC: "topic",
    ResourceType.GROUP: "group",
    ResourceType.TRANSACTIONAL_ID: "transactional id",
}


def expected(acl: Acl) -> str:
    """What the error says about a missing ACL."""
    # CREATE_CONFIGS becomes CreateConfigs.
    operation = "".join(word.capitalize() for word in acl.operation.name.split("_"))
    # The first call that is denied is often one that needs Describe, which Read and Write include.
    names = f"({operation}|Describe)" if operation in ("Read", "Write") else operation
    return rf"grant {names} on {KINDS[acl.kind]} {re.escape(acl.name)}"


@pytest.mark.timeout(900)
def test_a_run_without_one_of_its_acls(way: Callable[..., Way], make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(way("SCRAM", request_timeout_s=5))
    principal, cluster = shop.way.principal, shop.cluster
    cluster.grant(principal, shop.acls)
    shop.send(b'{"id": 1}', b'{"id": "two"}')
    for acl in shop.acls:
        cluster.revoke(principal, acl)
        with pytest.raises(AuthorizationFailedError, match=expected(acl)):
            shop.run()
        assert shop.read(shop.target) == []
        cluster.grant(principal, [acl])
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
    for acl in shop.redrive_acls:
        cluster.revoke(principal, acl)
        with pytest.raises(AuthorizationFailedError, match=expected(acl)):
            shop.redrive()
        cluster.grant(principal, [acl])
    assert shop.redrive()["sent"] == 1


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
