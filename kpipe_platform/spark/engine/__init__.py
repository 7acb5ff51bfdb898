"""The Spark session: settings, attaching to servers, and canceling jobs."""
