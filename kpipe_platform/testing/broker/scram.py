"""Store the users of SASL/SCRAM listeners in the cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kpipe_platform.errors import BrokerStartError
from kpipe_platform.testing.broker.listeners import BrokerListener
from kpipe_platform.testing.clients import client_config

__all__ = ["store_scram_users"]

_POLL_S = 0.02
_ITERATIONS = 4096  # Kafka's minimum
_MECHANISMS = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}


def store_scram_users(bootstrap_servers: str, listeners: Sequence[BrokerListener], deadline_s: float) -> None:
    """Store the users of the listeners, and wait until the brokers have them.

    Args:
        bootstrap_servers: Addresses of the plaintext listeners.
        listeners: Listeners, with or without SCRAM users.
        deadline_s: Maximum seconds to wait.

    Raises:
        BrokerStartError: The brokers did not accept the users, or not within the deadline.
    """
    credentials = [
        (user, mechanism, password)
        for listener in listeners
        for user, password in listener.scram_users.items()
        for mechanism in listener.scram_mechanisms
    ]
    if not credentials:
        return
    admin = AdminClient(client_config(bootstrap_servers))
    users = sorted({user for user, _, _ in credentials})
    end = time.monotonic() + deadline_s
    try:
        # One at a time: the broker refuses a request that names a user twice.
        for user, mechanism, password in credentials:
            info = ScramCredentialInfo(_MECHANISMS[mechanism], _ITERATIONS)
            upsertion = UserScramCredentialUpsertion(user, info, password.encode())
            admin.alter_user_scram_credentials([upsertion])[user].result(deadline_s)
        while not all(_known(admin, user, deadline_s) for user in users):
            if time.monotonic() >= end:
                msg = f"The brokers did not have the SCRAM users within {deadline_s:.0f} s."
                raise BrokerStartError(msg, log_tail="")
            time.sleep(_POLL_S)
    except KafkaException as error:
        msg = f"The brokers refused the SCRAM users: {error.args[0].str()}"
        raise BrokerStartError(msg, log_tail="") from error


def _known(admin: AdminClient, user: str, deadline_s: float) -> bool:
    try:
        answers = admin.describe_user_scram_credentials([user])
        if isinstance(answers, dict):
            answers[user].result(deadline_s)
    except KafkaException:
        return False
    return True
