"""Kinds of error, sorted by what the caller can do about them."""

from __future__ import annotations

from collections.abc import Sequence


class MemoryExtprocError(Exception):
    """What every error of ours is. Its text names the fault and never a person's words."""


class TransientError(MemoryExtprocError):
    """It may work later: the same call can be made again."""


class NotReadyError(TransientError):
    """The other side is up but not ready yet (loading, electing): a breaker does not count it as down."""


class UnknownFaultError(NotReadyError):
    """An error that is not known to be permanent. It is transient until the same call succeeds for others."""


class PermanentError(MemoryExtprocError):
    """It will fail again in the same way: a fault of the data, the schema or the configuration."""


class TruncatedAnswerError(PermanentError):
    """A model's answer did not fit into what it may have; less asked at a time may."""


class ModelStoppedError(PermanentError):
    """A language model is not asked for a while, because its answers were unusable several times in a row."""


class NotConfirmedError(PermanentError):
    """What cannot be undone was asked for without the confirmation it needs, or with one that does not hold."""


class BadBodyError(PermanentError):
    """A request or answer that is not what its dialect says it must be."""


class ConfigurationError(MemoryExtprocError):
    """The configuration cannot be used. Carries every fault found, each with its path."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)
