"""One named fault point for a redrive that a test starts as a process of its own.

``KPIPE_REDRIVE_FAULT=commit``: once a transaction is about to do that for the ``KPIPE_REDRIVE_FAULT_AT``-th time,
write the file ``KPIPE_REDRIVE_FAULT_FILE`` and hang, so that the test can kill the process at exactly that place. Other
places: ``begin``, ``add offsets``.
"""

import os
import pathlib
import threading

PLACE = os.environ.get("KPIPE_REDRIVE_FAULT")

if PLACE is not None:
    from kpipe_platform.dead_letters.redrive import transaction

    guard = transaction.RedriveTransaction._guard
    calls = []

    def _hang(self: transaction.RedriveTransaction, what: str, call: object) -> None:
        if what.startswith(PLACE):
            calls.append(what)
            if len(calls) == int(os.environ["KPIPE_REDRIVE_FAULT_AT"]):
                pathlib.Path(os.environ["KPIPE_REDRIVE_FAULT_FILE"]).write_text(str(os.getpid()))
                threading.Event().wait()
        guard(self, what, call)  # type: ignore[arg-type]

    transaction.RedriveTransaction._guard = _hang  # type: ignore[method-assign]
