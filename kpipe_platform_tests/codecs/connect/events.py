"""Change events from Debezium's documentation of its PostgreSQL connector, shortened."""

from __future__ import annotations

import json
from typing import Any

SOURCE = {
    "version": "3.4.0.Final",
    "connector": "postgresql",
    "name": "PostgreSQL_server",
    "ts_ms": 1559033904863,
    "ts_us": 1559033904863123,
    "snapshot": True,
    "db": "postgres",
    "sequence": '["24023119","24023128"]',
    "schema": "public",
    "table": "customers",
    "txId": 555,
    "lsn": 24023128,
    "xmin": None,
}
ANNE = {"id": 1, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
CUSTOMERS = "id INT NOT NULL, first_name STRING NOT NULL, last_name STRING NOT NULL, email STRING NOT NULL"
_FIELDS = [
    {"type": "int32", "optional": False, "field": "id"},
    *[{"type": "string", "optional": False, "field": name} for name in list(ANNE)[1:]],
]
_ROW = {"type": "struct", "fields": _FIELDS, "optional": True, "name": "PostgreSQL_server.inventory.customers.Value"}
SCHEMA = {
    "type": "struct",
    "fields": [{**_ROW, "field": "before"}, {**_ROW, "field": "after"}],
    "optional": False,
    "name": "PostgreSQL_server.inventory.customers.Envelope",
}
KEY_SCHEMA = {
    "type": "struct",
    "name": "PostgreSQL_server.public.customers.Key",
    "optional": False,
    "fields": [{"name": "id", "index": "0", "schema": {"type": "INT32", "optional": "false"}}],
}

CREATE = {"before": None, "after": ANNE, "source": SOURCE, "op": "c", "ts_ms": 1559033904863}
UPDATE = {
    "before": {"id": 1},
    "after": {**ANNE, "first_name": "Anne Marie"},
    "source": {**SOURCE, "snapshot": False, "txId": 556},
    "op": "u",
    "ts_ms": 1465584025523,
}
DELETE = {"before": {"id": 1}, "after": None, "source": SOURCE, "op": "d", "ts_ms": 1465581902461}
READ = {**CREATE, "op": "r"}
TRUNCATE = {"source": SOURCE, "op": "t", "ts_ms": 1559033904961}
MESSAGE = {
    "source": {**SOURCE, "schema": "", "table": ""},
    "op": "m",
    "ts_ms": 1559033904961,
    "message": {"prefix": "foo", "content": "Ymfy"},
}


def plain(event: Any) -> bytes:
    """An event or a key as the converter writes it with ``schemas.enable=false``."""
    return json.dumps(event).encode()


def enveloped(event: Any, schema: Any = SCHEMA) -> bytes:
    """An event or a key as the converter writes it by default."""
    return json.dumps({"schema": schema, "payload": event}).encode()
