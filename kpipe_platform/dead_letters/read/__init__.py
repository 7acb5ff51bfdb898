"""Reading dead letters, whoever wrote them."""
