"""``python -m benchmarks.cold``: one materialization in a process of its own, for the case ``warm_cold``."""

from __future__ import annotations

import json
import sys
import time

import kpipe_platform as kp
from benchmarks.kpipe import Kpipe, Topics, told_by
from benchmarks.orders import Orders
from benchmarks.work import JsonEnrich


def main() -> None:
    """Materialize, and print when it was done and what was told of it."""
    servers, source, count, tag, out, letters = sys.argv[1:]
    work = JsonEnrich(servers, source, Orders(int(count)))
    found = Kpipe("cold", work, kp.SparkEngine()).materialize(Topics(tag, out, letters))
    print(json.dumps({"finished": time.time(), "told": told_by(found)}))


if __name__ == "__main__":
    main()
