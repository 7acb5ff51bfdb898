from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest

from kpipe_platform.errors import ConfigError, EnvironmentSetupError
from kpipe_platform.registry.client import RegistryClient
from kpipe_platform.registry.settings import RegistrySettings

SECRET = "s3cret-of-ann"


def test_several_addresses_in_their_order() -> None:
    settings = RegistrySettings(" http://r1:8081/ , https://r2/apis/ccompat/v7")
    assert settings.urls == ("http://r1:8081", "https://r2/apis/ccompat/v7")
    assert settings.for_confluent()["url"] == "http://r1:8081,https://r2/apis/ccompat/v7"


def test_secrets_are_not_shown_and_settings_pickle_and_hash() -> None:
    settings = RegistrySettings("https://r", username="ann", password=SECRET, ssl_key_password=None)
    token = RegistrySettings("https://r", bearer_token=SECRET)
    for each in (settings, token):
        assert SECRET not in repr(each) + str(each.describe())
        assert each.redact(f"no {SECRET}!") == "no **********!"
        assert pickle.loads(pickle.dumps(each)) == each
        assert len({each, pickle.loads(pickle.dumps(each))}) == 1
    assert settings.secrets == (SECRET,)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"url": ""}, "'', which is not the address of a schema registry"),
        ({"url": "registry:8081"}, "'registry:8081', which is not the address"),
        ({"url": "http://r:8081,"}, "'', which is not the address"),
        ({"url": "http://"}, "'http:', which is not the address"),
        ({"url": "ftp://r"}, "'ftp://r', which is not the address"),
        ({"url": "http://r:port"}, "not a URL"),
        ({"url": "http://[::1"}, "not a URL"),
        ({"url": "http://r/?a=1"}, "which is not the address"),
        ({"url": f"http://ann:{SECRET}@r:8081"}, "url contains a user or a password"),
        ({"username": "ann"}, "only one of username and password is set"),
        ({"password": SECRET}, "only one of username and password is set"),
        ({"username": "a:b", "password": SECRET}, "a colon"),
        ({"username": "ann", "password": SECRET, "bearer_token": "t"}, "username and bearer_token are both set"),
        ({"bearer_token": ""}, "bearer_token is empty"),
        ({"bearer_token": f"{SECRET}\n"}, "white space"),
        ({"bearer_token": f"Bearer {SECRET}"}, "white space"),
        ({"bearer_logical_cluster": "lsrc-1"}, "bearer_logical_cluster is set, but bearer_token is not"),
        ({"bearer_identity_pool": "pool"}, "bearer_identity_pool is set, but bearer_token is not"),
        ({"ssl_ca_pem": "ca.pem"}, "ssl_ca_pem is set, but no address begins with https://"),
        ({"url": "https://r", "ssl_key_pem": "key.pem"}, "a private key is set without ssl_certificate_pem"),
        ({"request_timeout_s": 0}, "request_timeout_s is 0"),
        ({"request_timeout_s": float("nan")}, "request_timeout_s is nan"),
        ({"timeout_s": -1}, "timeout_s is -1"),
        ({"cache_size": 0}, "cache_size is 0"),
    ],
)
def test_invalid_settings(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RegistrySettings(**{"url": "http://r:8081", **given})
    assert says in caught.value.message
    assert caught.value.fix
    assert caught.value.attributes["setting"]
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("package", ["cachetools", "authlib.integrations.httpx_client"])
def test_the_error_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith("confluent_kafka.schema_registry")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(EnvironmentSetupError, match=r"pip install 'kpipe-platform\[registry\]'"):
        RegistryClient(RegistrySettings("http://r:8081"))
