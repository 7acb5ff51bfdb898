"""The Protobuf codec: messages of one type, plain or in Confluent's wire format."""
