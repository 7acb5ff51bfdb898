"""Schema registries with Confluent's API: settings, a client, and the wire format of records. No Dagster, no Spark."""
