from __future__ import annotations

import subprocess
import sys

import pytest

from kpipe_platform.cli.dev.sessions import end_session, session_members

# A child in a process group of its own, deaf to SIGTERM, outlives the leader of the session.
LEADER = """
import subprocess, sys
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, process_group=0)
child.stdout.readline()
print(child.pid, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_what_is_left_of_a_session_is_ended_after_the_deadline() -> None:
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, start_new_session=True)
    out, _ = leader.communicate(timeout=60)
    assert list(session_members(leader.pid)) == [int(out)]

    end_session(leader.pid, 0.1)

    # Killed, though not perhaps gone at once.
    end_session(leader.pid, 60.0)
    assert list(session_members(leader.pid)) == []
