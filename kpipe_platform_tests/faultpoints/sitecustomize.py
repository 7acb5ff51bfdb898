"""One named fault point for processes that a test starts: the driver, Spark's Python workers, or a redrive.

``KPIPE_FAULT=hang_before_offsets``: write the file ``KPIPE_FAULT_FILE`` once every output is flushed, then hang before
the offsets are added to the transaction. ``hang_before_begin``: hang before the transaction begins;
``hang_before_commit``: hang when they are added, before the commit;
``hang_after_commit``: behind it. So the test can kill the processes at exactly that place. ``lose_answer``: commit, and
find that the brokers have not answered. ``KPIPE_FAULT_AFTER``: pass there so many times first; they are
counted in a file, because each Spark task may run in another process. ``KPIPE_FAULT_KILLS=1``: the process is killed by
SIGKILL in place of hanging.

``KPIPE_FAULT_CONTROL``: a JSON file with those names and values, for processes that outlive one fault: it is read each
time, and without it there is no fault.
"""

import json
import os
import pathlib
import signal
import threading
from collections.abc import Mapping

CONTROL = os.environ.get("KPIPE_FAULT_CONTROL")
PLACES = {
    "hang_before_begin": "BEGIN",
    "hang_before_offsets": "ADD_OFFSETS",
    "hang_before_commit": "COMMIT",
    "hang_after_commit": "COMMIT",
    "lose_answer": "COMMIT",
}

if CONTROL or os.environ.get("KPIPE_FAULT") in PLACES:
    from kpipe_platform.errors import BrokerUnavailableError
    from kpipe_platform.kafka.transactions.base import CommitStep, OffsetTransaction

    def _fault() -> Mapping[str, str]:
        if CONTROL is None:
            return os.environ
        try:
            found: dict[str, str] = json.loads(pathlib.Path(CONTROL).read_text())
        except FileNotFoundError:
            return {}
        return found

    def _passes(fault: Mapping[str, str]) -> bool:
        counter = pathlib.Path(fault["KPIPE_FAULT_FILE"] + ".passed")
        with counter.open("ab") as file:
            file.write(b".")
        return counter.stat().st_size <= int(fault.get("KPIPE_FAULT_AFTER", "0"))

    request = OffsetTransaction.request

    def _hang(self: OffsetTransaction, step: CommitStep, call: object) -> None:
        fault = _fault()
        name = fault.get("KPIPE_FAULT", "")
        is_there = PLACES.get(name) == step.name and not _passes(fault)
        if not is_there or name in ("hang_after_commit", "lose_answer"):
            request(self, step, call)  # type: ignore[arg-type]
        if is_there:
            pathlib.Path(fault["KPIPE_FAULT_FILE"]).write_text(str(os.getpid()))
            if name == "lose_answer":
                raise BrokerUnavailableError(f"no answer to: {step.value}")
            if fault.get("KPIPE_FAULT_KILLS"):
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()

    OffsetTransaction.request = _hang  # type: ignore[method-assign,assignment]
