"""Error types, by the caller's possible reaction."""

from __future__ import annotations

from collections.abc import Sequence


class MemoryExtprocError(Exception):
    """The base of our errors. The text names the fault and never contains user text."""


class TransientError(MemoryExtprocError):
    """A retry of the same call may succeed."""


class NotReadyError(TransientError):
    """The other side is starting (loading, electing): a circuit breaker does not count it as down."""


class UnknownFaultError(NotReadyError):
    """An error of unknown kind. Treated as transient until the same call succeeds for others."""


class PermanentError(MemoryExtprocError):
    """A retry fails again: a fault of the data, the schema or the configuration."""


class TruncatedAnswerError(PermanentError):
    """A model's answer was truncated; a smaller request may succeed."""


class ModelStoppedError(PermanentError):
    """A language model is paused after several consecutive unusable answers."""


class NotConfirmedError(PermanentError):
    """An irreversible operation lacks a confirmation, or the confirmation is invalid."""


class BadBodyError(PermanentError):
    """A request or response that is invalid in its dialect."""


class ConfigurationError(MemoryExtprocError):
    """The configuration is invalid. Contains every fault with its path."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)
