"""One named fault point for processes that a test starts, in the driver and in Spark's Python workers alike.

``KPIPE_FAULT=hang_before_offsets``: write the file ``KPIPE_FAULT_FILE`` once every output is flushed, then hang before
the offsets are added to the transaction. ``hang_before_commit``: hang when they are added, before the commit. So the
test can kill the processes at exactly that place. ``KPIPE_FAULT_AFTER``: pass there so many times first; they are
counted in a file, because each Spark task may run in another process.
"""

import os
import pathlib
import threading

FAULT = os.environ.get("KPIPE_FAULT")

if FAULT in ("hang_before_offsets", "hang_before_commit"):
    from kpipe_platform.kafka import transactions

    at = {"hang_before_offsets": "add offsets", "hang_before_commit": "commit"}[FAULT]

    def _passes() -> bool:
        counter = pathlib.Path(os.environ["KPIPE_FAULT_FILE"] + ".passed")
        with counter.open("ab") as file:
            file.write(b".")
        return counter.stat().st_size <= int(os.environ.get("KPIPE_FAULT_AFTER", "0"))

    guard = transactions.SliceTransaction._guard

    def _hang(self: transactions.SliceTransaction, what: str, call: object) -> None:
        if what.startswith(at) and not _passes():
            pathlib.Path(os.environ["KPIPE_FAULT_FILE"]).write_text(str(os.getpid()))
            threading.Event().wait()
        guard(self, what, call)  # type: ignore[arg-type]

    transactions.SliceTransaction._guard = _hang  # type: ignore[method-assign]
