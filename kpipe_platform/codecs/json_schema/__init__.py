"""JSON with a JSON Schema: validation of each record, and columns from the schema."""
