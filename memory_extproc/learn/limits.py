"""The bounds of the write path."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from memory_extproc.learn.lanes import Backoff


@dataclass(frozen=True, slots=True)
class LearnLimits:
    journal_wait: timedelta = timedelta(milliseconds=50)  # how long an answer's last message may wait
    accepting: int = 1_000  # exchanges on their way into the journal; beyond it they are not kept
    # For so long all that is asked must have answered before exchanges that were undecided are decided: the other
    # replicas then had several looks (IncognitoLimits.retry) at whether they can share their incognito marks.
    settle: timedelta = timedelta(seconds=3)
    batch: int = 10  # turns of a session from which facts are extracted together
    idle: timedelta = timedelta(seconds=60)  # a session silent for so long is extracted from
    remembering: int = 8  # owners whose messages are stored at a time
    extracting: int = 4  # owners from whose turns facts are extracted at a time
    together: int = 32  # turns of one owner remembered together
    rows: int = 256  # memories handed to the store in one call: a turn can have more than a hundred
    overlaid: int = 10_000  # turns shown by the partitions while the store is down; later ones are not
    patience: timedelta = timedelta(hours=24)  # with a model that is away, before the stand-in's word holds
    stood_in_for: int = (
        20_000  # turns that may wait for the model at a time; beyond it the stand-in has the last word
    )
    attempts: int = 3  # at a turn that cannot be learned, until it is a dead letter
    backoff: Backoff = field(default_factory=Backoff)
    retention: timedelta = timedelta(minutes=10)  # of learned turns in the journal
    look: timedelta = timedelta(seconds=1)  # between two looks for what arrived in the journal by other ways
    sweep: timedelta = timedelta(seconds=5)  # between two looks at the journal's depth
    grace: timedelta = timedelta(seconds=20)  # to work off what was accepted when we leave
