"""One named fault point for processes that a test starts, in the driver and in Spark's Python workers alike.

``KPIPE_FAULT=hang_before_commit``: write the file ``KPIPE_FAULT_FILE`` once every output is flushed, then hang before
the transaction commits, so that the test can kill the processes at exactly that place.
"""

import os
import pathlib
import threading

if os.environ.get("KPIPE_FAULT") == "hang_before_commit":
    from kpipe_platform.kafka import transactions

    def _hang(self: object, counts: object) -> None:
        pathlib.Path(os.environ["KPIPE_FAULT_FILE"]).write_text(str(os.getpid()))
        threading.Event().wait()

    transactions.SliceTransaction.commit = _hang  # type: ignore[method-assign]
