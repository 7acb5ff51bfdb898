"""``python -m benchmarks.cold``: one materialization in a new process, for the case ``warm_cold``."""

from __future__ import annotations

import json
import sys
import time

import kpipe_platform as kp
from benchmarks.kpipe import Kpipe, Topics, counts_of
from benchmarks.orders import Orders
from benchmarks.work import JsonEnrich


def main() -> None:
    """Materialize, and print the end time and the counts in the metadata."""
    servers, source, count, tag, out, dead_letters = sys.argv[1:]
    work = JsonEnrich(servers, source, Orders(int(count)))
    materializations = Kpipe("cold", work, kp.SparkEngine()).materialize(Topics(tag, out, dead_letters))
    print(json.dumps({"finished": time.time(), "counts": counts_of(materializations)}))


if __name__ == "__main__":
    main()
