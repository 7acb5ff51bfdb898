"""What brokers say and change: topics, groups, owners, retention."""
