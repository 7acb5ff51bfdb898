"""The Spark session: settings, attaching to servers, cancelling."""
