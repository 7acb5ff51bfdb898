"""A client of a schema registry with Confluent's API: bounded cache, typed errors, references resolved.

Source: Confluent's Schema Registry API reference.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, MutableMapping
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID

from kpipe_platform.errors import ConfigError, IncompatibleSchemaError, SchemaNotFoundError
from kpipe_platform.registry import _compat
from kpipe_platform.registry.calls import call
from kpipe_platform.registry.model import RegisteredSchema, Schema, SchemaReference, parse_schema
from kpipe_platform.registry.settings import RegistrySettings

__all__ = ["RegistryClient", "registry_client"]

Result = TypeVar("Result")

# Another program may register an id a moment after a record with it was read.
_MISSING_TTL_S = 5.0
_MAX_ID = 2**31 - 1
_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND = 40401, 40402


class RegistryClient:
    """Reads, registers and checks schemas. Safe for threads. Construction opens no connection.

    Schemas by id and by version never change, so they are cached, the least recently used ones dropped first. An id
    that does not exist is cached for 5 seconds. `latest`, `lookup`, `register` and `check_compatible` ask the registry
    in each call.

    Every method may raise `RegistryUnavailableError` (the registry does not respond, or with a server error),
    `AuthenticationFailedError`, `AuthorizationFailedError` or `ConfigError`. None of them is a fault of a record.

    Args:
        settings: Settings of the registry.
        sleep: Waits between attempts; ``time.sleep`` by default.
        clock: Clock of the cache, seconds; ``time.monotonic`` by default.

    Raises:
        EnvironmentSetupError: The extra ``registry`` is not installed.
    """

    def __init__(
        self,
        settings: RegistrySettings,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _compat.require()
        from cachetools import LRUCache, TTLCache

        self.settings = settings
        self._sleep = sleep
        self._lock = threading.Lock()
        self._known: MutableMapping[object, RegisteredSchema] = LRUCache(settings.cache_size)
        self._missing: MutableMapping[object, SchemaNotFoundError] = TTLCache(
            settings.cache_size, _MISSING_TTL_S, timer=clock
        )
        self._client: _compat.RestClient | None = None

    def schema_by_id(self, schema_id: int) -> RegisteredSchema:
        """Return the schema with this id, with its references.

        Raises:
            SchemaNotFoundError: The registry responded that it has no such schema.
        """
        what = f"read schema {schema_id}"
        if not 0 <= schema_id <= _MAX_ID:
            msg = f"cannot {what}: ids of schemas are from 0 to {_MAX_ID}"
            raise SchemaNotFoundError(msg, fix="the bytes are not an id; check what wrote the record")

        def read() -> RegisteredSchema:
            return self._get(f"schemas/ids/{schema_id}", what, lambda found: parse_schema({**found, "id": schema_id}))

        return self._cached(schema_id, lambda: self._resolved(read()))

    def schema_by_guid(self, guid: UUID) -> Schema:
        """Return the schema with this globally unique id, with its references.

        Raises:
            SchemaNotFoundError: The registry responded that it has no such schema.
        """

        def read() -> RegisteredSchema:
            # The response has no id.
            return self._get(
                f"schemas/guids/{guid}", f"read schema {guid}", lambda found: parse_schema({"id": 0, **found})
            )

        return self._cached(guid, lambda: self._resolved(read())).plain

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the latest schema of a subject, with its references.

        Raises:
            SchemaNotFoundError: The registry does not have the subject.
        """
        what = f"read the latest schema of {subject!r}"
        return self._remember(self._get(f"subjects/{_encoded(subject)}/versions/latest", what, parse_schema))

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the ids of all schemas of a subject, oldest version first; empty if there is no such subject."""
        what = f"list the versions of {subject!r}"
        try:
            numbers = self._get(f"subjects/{_encoded(subject)}/versions", what, lambda found: sorted(map(int, found)))
        except SchemaNotFoundError:
            return ()
        ids: dict[int, None] = {}
        for number in numbers:
            try:
                ids[self._version(subject, number).id] = None
            except SchemaNotFoundError:
                continue  # deleted since the list was read
        return tuple(ids)

    def lookup(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Return the registered version of a schema.

        Raises:
            SchemaNotFoundError: The schema is not registered under this subject.
        """
        what = f"look up a schema of {subject!r}"
        return self._remember(self._post_schema(f"subjects/{_encoded(subject)}", what, subject, schema))

    def register(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Register a schema, or find it if it is registered already.

        Raises:
            IncompatibleSchemaError: The registry refuses the schema, because it is incompatible.
        """
        what = f"register a schema of {subject!r}"
        return self._remember(self._post_schema(f"subjects/{_encoded(subject)}/versions", what, subject, schema))

    def check_compatible(self, subject: str, schema: Schema) -> None:
        """Check that the registry would accept a schema. A subject that does not exist yet accepts every schema.

        Raises:
            IncompatibleSchemaError: It would not; the message has the registry's reasons.
        """
        what = f"check a schema of {subject!r}"
        path = f"compatibility/subjects/{_encoded(subject)}/versions?verbose=true"
        try:
            reasons = call(
                self.settings, what, lambda: _refusals(self._rest().post(path, schema.to_request())), self._sleep
            )
        except SchemaNotFoundError as error:
            if error.attributes["code"] in (_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND):
                return
            raise
        if reasons:
            msg = f"the schema is not compatible with the subject {subject!r} in the registry: {'; '.join(reasons)}"
            fix = "change the schema, or the compatibility of the subject in the registry"
            raise IncompatibleSchemaError(msg, fix=fix, subject=subject, reasons=reasons)

    def _version(self, subject: str, version: int, within: tuple[SchemaReference, ...] = ()) -> RegisteredSchema:
        path, what = f"subjects/{_encoded(subject)}/versions/{version}", f"read version {version} of {subject!r}"
        return self._cached((subject, version), lambda: self._resolved(self._get(path, what, parse_schema), within))

    def _resolved(self, found: RegisteredSchema, within: tuple[SchemaReference, ...] = ()) -> RegisteredSchema:
        """Read the schemas of the references, and of their references."""
        return replace(found, references=tuple(self._with_schema(each, within) for each in found.references))

    def _with_schema(self, reference: SchemaReference, within: tuple[SchemaReference, ...]) -> SchemaReference:
        if reference in within:
            msg = f"the schema {reference.name!r} ({reference.label}) in the registry refers to itself"
            raise ConfigError(msg, fix="register the schemas without a circle of references")
        try:
            return replace(reference, schema=self._version(reference.subject, reference.version, (*within, reference)))
        except SchemaNotFoundError as error:
            # Not a fault of a record: the registry has the schema of the record, but not all of it.
            msg = f"the registry does not have {reference.label}, to which a schema refers as {reference.name!r}"
            raise ConfigError(msg, fix="register the schema again, under the subject and version") from error

    def _remember(self, found: RegisteredSchema) -> RegisteredSchema:
        resolved = self._resolved(found)
        with self._lock:
            self._known[resolved.id] = resolved
            self._missing.pop(resolved.id, None)
        return resolved

    def _cached(self, key: object, read: Callable[[], RegisteredSchema]) -> RegisteredSchema:
        with self._lock:
            known, missing = self._known.get(key), self._missing.get(key)
        if known is not None:
            return known
        if missing is not None:
            raise copy(missing)
        try:
            found = read()
        except SchemaNotFoundError as error:
            with self._lock:
                self._missing[key] = copy(error)
            raise
        with self._lock:
            self._known[key] = found
        return found

    def _get(self, path: str, what: str, parse: Callable[[Any], Result]) -> Result:
        return call(self.settings, what, lambda: parse(self._rest().get(path)), self._sleep)

    def _post_schema(self, path: str, what: str, subject: str, schema: Schema) -> RegisteredSchema:
        request = schema.to_request()

        def send() -> RegisteredSchema:
            # A registry may respond with the id only.
            return parse_schema({"subject": subject, **request, **self._rest().post(path, request)})

        return call(self.settings, what, send, self._sleep)

    def _rest(self) -> _compat.RestClient:
        with self._lock:
            if self._client is None:
                try:
                    self._client = _compat.rest_client(self.settings)
                except OSError as error:  # includes ssl.SSLError
                    msg = f"schema registry: the certificates or the private key cannot be read: {error}"
                    fix = "check ssl_ca_pem, ssl_certificate_pem, ssl_key_pem and ssl_key_password"
                    raise ConfigError(msg, fix=fix) from error
            return self._client


def registry_client(settings: RegistrySettings) -> RegistryClient:
    """Return the client of this process for a registry, so that all its users share connections and cache."""
    return _client_of(settings, os.getpid())


@lru_cache(maxsize=8)
def _client_of(settings: RegistrySettings, pid: int) -> RegistryClient:
    # A forked process must not share connections with its parent, hence the pid.
    return RegistryClient(settings)


def _refusals(found: dict[str, Any]) -> tuple[str, ...]:
    """Return the reasons why a schema is incompatible; empty if it is compatible."""
    if found["is_compatible"]:
        return ()
    # Confluent's registry has a list of messages, Apicurio's one reason.
    return tuple(str(each) for each in found.get("messages") or [found.get("reason") or "no reason given"])


def _encoded(subject: str) -> str:
    return quote(subject, safe="")
