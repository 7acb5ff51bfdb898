"""Calls of the registry with retries, and conversion of failures to typed kpipe errors."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_before_delay, wait_random_exponential

from kpipe_platform.errors import (
    AuthenticationFailedError,
    AuthorizationFailedError,
    ConfigError,
    IncompatibleSchemaError,
    KpipeError,
    RegistryUnavailableError,
    SchemaNotFoundError,
)
from kpipe_platform.registry.settings import RegistrySettings

__all__ = ["call"]

Result = TypeVar("Result")

# Waits between two attempts, seconds. A load balancer usually finds a healthy registry within a second.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0
_MAX_QUOTED = 300
_TEMPORARY = {408, 425, 429}
_CHECK_URL = "check the registry's url, including the path of its API (for Apicurio Registry, /apis/ccompat/v7)"
_AGAIN = "run again when the registry responds"


def call(
    settings: RegistrySettings, what: str, request: Callable[[], Result], sleep: Callable[[float], None]
) -> Result:
    """Send a request, and again while the registry is unavailable, until ``timeout_s``.

    Args:
        settings: Settings of the registry.
        what: The request, as a phrase for error messages, for example ``read schema 7``.
        request: Sends the request to each address in turn, once.
        sleep: Waits for some seconds.

    Raises:
        RegistryUnavailableError: No response in time, or 429, 408 or a server error.
        SchemaNotFoundError: The registry responded that it does not have the schema, subject or version.
        IncompatibleSchemaError: The registry refused to register the schema, because it is incompatible.
        AuthenticationFailedError: The registry refused the credentials, or TLS failed.
        AuthorizationFailedError: The registry denies the request.
        ConfigError: The address is not that of a schema registry, or the registry refused the request.
    """

    def attempt() -> Result:
        try:
            return request()
        except KpipeError:
            raise
        except Exception as error:
            raise _typed(error, settings, what) from error

    attempts = Retrying(
        retry=retry_if_exception_type(RegistryUnavailableError),
        stop=stop_before_delay(settings.timeout_s),
        wait=wait_random_exponential(multiplier=_FIRST_WAIT_S, max=_LONGEST_WAIT_S),
        sleep=sleep,
        reraise=True,
    )
    return attempts(attempt)


def _typed(error: Exception, settings: RegistrySettings, what: str) -> Exception:
    """Return the typed error of a failed request; the error itself if it is a bug."""
    from confluent_kafka.schema_registry import SchemaRegistryError
    from confluent_kafka.schema_registry.common._httpx_compat import httpx

    start = f"cannot {what}: the schema registry at {', '.join(settings.urls)}"
    if isinstance(error, SchemaRegistryError):
        return _refusal(error.http_status_code, error.error_code, _quoted(settings, error.error_message), start)
    if any(_is_tls_refusal(each) for each in _causes(error)):
        fix = "check ssl_ca_pem, ssl_certificate_pem and ssl_key_pem, and that the port serves TLS"
        return AuthenticationFailedError(f"{start} cannot be reached over TLS: {_quoted(settings, error)}", fix=fix)
    if isinstance(error, httpx.TimeoutException):
        msg = f"{start} did not respond within {settings.request_timeout_s:g} s"
        return RegistryUnavailableError(msg, fix=f"check that it is running and reachable; {_AGAIN}")
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL)):
        return ConfigError(f"{start} cannot be asked: {_quoted(settings, error)}", fix=_CHECK_URL, setting="url")
    if isinstance(error, httpx.HTTPError):
        msg = f"{start} cannot be reached: {_quoted(settings, error) or type(error).__name__}"
        fix = f"check its url, and that it is running and reachable; {_AGAIN}"
        return RegistryUnavailableError(msg, fix=fix)
    if isinstance(error, (ValueError, KeyError, TypeError)):
        msg = f"{start} responded with something that a schema registry does not respond with"
        return ConfigError(msg, fix=_CHECK_URL, setting="url")
    return error


def _refusal(status: int, code: object, reason: str, start: str) -> KpipeError:
    facts: dict[str, Any] = {"status": status, "code": code}
    msg = f"{start} responded with {status}: {reason}"
    if status == 401:
        fix = "check username and password, or bearer_token; use dagster.EnvVar for secrets"
        return AuthenticationFailedError(msg, fix=fix, **facts)
    if status == 403:
        return AuthorizationFailedError(msg, fix="grant this user access to the subject in the registry", **facts)
    if status == 404:
        if isinstance(code, int) and 40400 <= code <= 40499:
            fix = "check the subject or id, and that this is the registry that the producer uses"
            return SchemaNotFoundError(msg, fix=fix, **facts)
        # Not a response about a schema. If it counted as one, a wrong URL would make every record a dead letter.
        return ConfigError(f"{msg}. It does not have this API", fix=_CHECK_URL, setting="url", **facts)
    if status == 409:
        fix = "change the schema, or the compatibility of the subject in the registry"
        return IncompatibleSchemaError(msg, fix=fix, reasons=(reason,), **facts)
    if status in _TEMPORARY or status >= 500:
        return RegistryUnavailableError(msg, fix=f"check the registry's log; {_AGAIN}", **facts)
    if status == 422:
        return ConfigError(msg, fix="correct the schema or the request as the registry's reason says", **facts)
    return ConfigError(msg, fix=_CHECK_URL, **facts)


def _is_tls_refusal(error: BaseException) -> bool:
    # A server that restarts closes the connection during the handshake, which is not a refusal.
    closed = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    return isinstance(error, ssl.SSLError) and not isinstance(error, closed)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _quoted(settings: RegistrySettings, message: object) -> str:
    # A proxy may respond with a whole page.
    text = " ".join(settings.redact(str(message)).split())
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}..."
