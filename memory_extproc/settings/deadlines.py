"""How long a request may wait, as several sections say it together."""

from __future__ import annotations

from datetime import timedelta

from memory_extproc.settings.edge import EnvoySection
from memory_extproc.settings.work import Recall

DEADLINE = timedelta(milliseconds=150)
DEADLINE_WITH_MODEL = timedelta(seconds=1.5)
LEAST_MESSAGE_TIMEOUT = timedelta(seconds=1)


def deadline_of(recall: Recall) -> timedelta:
    if recall.deadline != "auto":
        return recall.deadline
    return DEADLINE_WITH_MODEL if recall.with_model else DEADLINE


def message_timeout_of(envoy: EnvoySection, recall: Recall) -> timedelta:
    if envoy.message_timeout != "auto":
        return envoy.message_timeout
    return max(LEAST_MESSAGE_TIMEOUT, 4 * deadline_of(recall))
