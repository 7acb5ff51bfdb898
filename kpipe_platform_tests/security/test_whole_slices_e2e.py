"""A sensor tick, two slices and a redrive over each security protocol, by a principal with only the documented ACLs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest

from .conftest import PASSWORD, TOKEN_LIFETIME_S, Cluster, Shop, Way

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]


def slow(orders: Any) -> Any:
    """A stage that takes longer than a token is valid, in the task that holds the transaction open."""

    def wait(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        time.sleep(TOKEN_LIFETIME_S * 1.5)
        yield from batches

    return orders.mapInPandas(wait, orders.schema)


@pytest.mark.timeout(600)
# The callback comes first, because Spark keeps consumers, and those of OAUTHBEARER ask for tokens as long as it does.
@pytest.mark.parametrize("protocol", ["token callback", "mutual TLS", "SCRAM", "OAUTHBEARER"])
def test_a_tick_two_slices_and_a_redrive(
    protocol: str,
    way: Callable[..., Way],
    make_shop: Callable[..., Shop],
    cluster: Cluster,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shop = make_shop(way(protocol), slow)
    cluster.grant(shop.way.principal, [*shop.acls, *shop.redrive_acls])
    cluster.tokens.given.clear()
    shop.send(b'{"id": 1}', b'{"id": "two"}')
    (request,) = shop.tick()
    result = shop.run(request.partition_key, {**request.tags})
    assert shop.read(shop.target) == [{"id": 1}]
    assert shop.tick() == []
    # Connections and cached consumers whose token has expired meanwhile.
    shop.send(b'{"id": 3}')
    (request,) = shop.tick()
    shop.run(request.partition_key, {**request.tags})
    assert [each["id"] for each in shop.read(shop.target)] == [1, 3]
    assert shop.redrive()["sent"] == 1
    assert shop.tick() != []
    shown = capfd.readouterr()
    text = shown.out + shown.err + str([event for event in shop.instance.all_logs(result.run_id)])
    assert PASSWORD not in text
    given = cluster.tokens.given
    if protocol == "OAUTHBEARER":
        assert given["kpipe", "java"] >= 2
        assert given["kpipe", "librdkafka"] >= 4
        assert cluster.tokens.scopes == {"kafka"}
    elif protocol == "token callback":
        assert given["kpipe", "java"] == 0
        assert given["kpipe", "callback"] >= 4
    else:
        assert not given
