"""Tokens of SASL OAUTHBEARER from a Python function: the user's callback, or that of AWS MSK IAM.

confluent-kafka calls the function in a background thread, so no client has to be polled for it. Its constructor waits
for the first token in steps of one second, and reports only that there is none. So the function is called before a
client is created, and its error is raised there.

Source: librdkafka ``rd_kafka_sasl_background_callbacks_enable``, confluent-kafka ``oauth_cb``.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
import traceback
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any, ClassVar

from kpipe_platform.errors import AuthenticationFailedError, EnvironmentSetupError
from kpipe_platform.kafka.client.functions import load_function

logger = logging.getLogger(__name__)

_MSK_MODULE = "aws_msk_iam_sasl_signer"
# A token is used for new clients until this part of its lifetime has passed. librdkafka refreshes after 80%.
_REUSED = 0.5


class TokenSource:
    """Returns tokens for confluent-kafka's ``oauth_cb``. Equal sources of a process share their last token."""

    # Tokens by source, each with the time until which new clients may use it.
    _tokens: ClassVar[dict[TokenSource, tuple[tuple[Any, ...], float]]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __call__(self, config: str | None = None) -> tuple[Any, ...]:
        """Return the token, its expiry in seconds since 1970, and what else the function returns.

        Args:
            config: The value of librdkafka's ``sasl.oauthbearer.config``.

        Raises:
            AuthenticationFailedError: The function failed.
            ConfigError: The function cannot be imported.
            EnvironmentSetupError: A package is missing.
        """
        with self._lock:
            token, until_s = self._tokens.get(self, ((), 0.0))
        now_s = time.time()
        if token and now_s < until_s:
            return token
        try:
            token = self._checked(self._fetch(config))
        except AuthenticationFailedError as error:
            # librdkafka reports neither the reason nor the function.
            logger.warning("%s", error.message)
            raise
        with self._lock:
            self._tokens[self] = token, now_s + (token[1] - now_s) * _REUSED
        return token

    def _fetch(self, config: str | None) -> Any:
        raise NotImplementedError

    def _checked(self, result: Any) -> tuple[Any, ...]:
        if (
            isinstance(result, tuple)
            and 2 <= len(result) <= 4
            and isinstance(result[0], str)
            and isinstance(result[1], int | float)
        ):
            if result[1] > time.time():
                return result
            msg = f"{self} returned a token that has expired"
            fix = "return a new token, and its expiry in seconds since 1970"
        else:
            # Not the result itself, which may have a token.
            shape = ", ".join(type(each).__name__ for each in result) if isinstance(result, tuple) else ""
            msg = f"{self} returned {type(result).__name__}{f' ({shape})' if shape else ''}, which is not a token"
            fix = "return (token, expiry in seconds since 1970), and optionally the principal and a dict of extensions"
        raise AuthenticationFailedError(msg, fix=fix)


@dataclass(frozen=True)
class CallbackTokens(TokenSource):
    """Tokens of the user's function.

    Args:
        path: ``package.module:function``.
    """

    path: str

    def __str__(self) -> str:
        return f"the token callback {self.path!r}"

    def _fetch(self, config: str | None) -> Any:
        callback = load_callback(self.path)
        try:
            return callback(config)
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            # Without the exception and its text, which may quote a secret.
            line = traceback.extract_tb(error.__traceback__)[-1]
            where = f"in {line.name} ({PurePath(line.filename).name}, line {line.lineno})"
            msg = f"{self} raised {type(error).__name__} {where}"
            fix = "correct the function, or the service that it calls"
            raise AuthenticationFailedError(msg, fix=fix) from None


@dataclass(frozen=True)
class MskTokens(TokenSource):
    """Tokens that AWS credentials sign for an MSK cluster.

    Args:
        region: AWS region of the cluster.
        role_arn: Role to assume; None for the credentials that boto3 finds.
        profile: Profile of the AWS configuration; None for the credentials that boto3 finds.
    """

    region: str
    role_arn: str | None = None
    profile: str | None = None

    def __str__(self) -> str:
        return f"the signer of AWS MSK IAM for region {self.region}"

    def _fetch(self, config: str | None) -> Any:
        require_msk_package()
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as Provider

        try:
            if self.role_arn is not None:
                token, expiry_ms = Provider.generate_auth_token_from_role_arn(self.region, self.role_arn)
            elif self.profile is not None:
                token, expiry_ms = Provider.generate_auth_token_from_profile(self.region, self.profile)
            else:
                token, expiry_ms = Provider.generate_auth_token(self.region)
        except Exception as error:
            # boto3's exceptions name what is missing, and no credentials.
            msg = f"{self} failed: {type(error).__name__}: {error}"
            fix = "give this process AWS credentials: a role, a profile, or the variables AWS_ACCESS_KEY_ID and so on"
            raise AuthenticationFailedError(msg, fix=fix) from error
        return token, expiry_ms / 1000


@lru_cache(maxsize=64)
def load_callback(path: str) -> Any:
    """Import the user's token callback. Failures are not cached.

    Raises:
        ConfigError: It cannot be imported.
    """
    return load_function(
        path,
        what="token callback",
        takes="(config: str | None) and returns (token, expiry in seconds since 1970)",
        setting="oauth_token_callback",
    )


def require_msk_package() -> None:
    """Check that the package that signs tokens for MSK is installed.

    Raises:
        EnvironmentSetupError: It is not. The error names the extra.
    """
    if importlib.util.find_spec(_MSK_MODULE) is None:
        msg = "sasl_mechanism AWS_MSK_IAM needs the package aws-msk-iam-sasl-signer-python, which is not installed"
        fix = "pip install 'kpipe-platform[msk]', where Dagster runs and where Spark's workers run"
        raise EnvironmentSetupError(msg, fix=fix)
