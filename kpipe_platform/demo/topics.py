"""The topics of the flights demo and the schemas of their records."""

from __future__ import annotations

from kpipe_platform import TopicSpec

FLIGHTS = "flights"
ENRICHED = "flights.enriched"
DEAD_LETTERS = "flights.dlq"

PARTITIONS = 4

# The records have timestamps of 2013. With the brokers' default retention of a week they would be deleted at once.
KEPT_FOREVER = TopicSpec(PARTITIONS, config={"retention.ms": "-1"})

TOPICS = {FLIGHTS: KEPT_FOREVER, ENRICHED: KEPT_FOREVER, DEAD_LETTERS: KEPT_FOREVER}

FLIGHT = """
    year INT NOT NULL, month INT NOT NULL, day INT NOT NULL,
    dep_time INT NOT NULL COMMENT 'hhmm, local; a flight without it never departed',
    sched_dep_time INT NOT NULL, dep_delay INT COMMENT 'minutes',
    arr_time INT, sched_arr_time INT NOT NULL, arr_delay INT COMMENT 'minutes',
    carrier STRING NOT NULL, flight INT NOT NULL, tailnum STRING,
    origin STRING NOT NULL, dest STRING NOT NULL,
    air_time INT COMMENT 'minutes', distance INT NOT NULL COMMENT 'miles',
    hour INT NOT NULL, minute INT NOT NULL, time_hour TIMESTAMP NOT NULL COMMENT 'scheduled hour'
"""

ENRICHED_FLIGHT = f"""{FLIGHT},
    airline STRING COMMENT 'name of the carrier',
    manufacturer STRING, model STRING, seats INT, built INT COMMENT 'year',
    delay_class STRING NOT NULL COMMENT 'on_time, late, very_late, unknown; by arrival',
    speed_mph DOUBLE COMMENT 'average over the distance'
"""
