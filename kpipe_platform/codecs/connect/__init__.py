"""Records of Kafka Connect and change events of Debezium, over JSON or over another codec."""
