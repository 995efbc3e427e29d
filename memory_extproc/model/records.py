"""Kinds of records that Coordination keeps, in one place: what a forget has to erase is read from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordKind:
    """*name* is stored, so it is never changed."""

    name: str
    holds_text: bool  # people's words or memories: erased by every forget; others go with a forget of everything


_KINDS = (
    RecordKind("head", holds_text=False),  # learn/sessions.py, these six: hashes and places of conversations
    RecordKind("slot", holds_text=False),
    RecordKind("opening", holds_text=False),
    RecordKind("tail", holds_text=False),
    RecordKind("turn", holds_text=False),
    RecordKind("response", holds_text=True),  # and the user's last texts
    RecordKind("incognito", holds_text=False),  # learn/incognito.py
    RecordKind("given", holds_text=True),  # wire/replays.py: blocks of memories
    RecordKind("given_response", holds_text=True),
    RecordKind("compressed", holds_text=True),  # wire/compression.py: a conversation, condensed
    RecordKind("topics", holds_text=False),  # topics/state.py: ids and places of turns
    RecordKind("retention", holds_text=False),  # retention: that an owner was seen to, ids of facts
    RecordKind("forget_plan", holds_text=False),  # erasure/plans.py: ids
    RecordKind("api", holds_text=False),  # api/repeats.py: a hash of the call, ids and words of ours
)
RECORD_KINDS: Mapping[str, RecordKind] = {kind.name: kind for kind in _KINDS}
TEXT_KINDS = tuple(kind.name for kind in _KINDS if kind.holds_text)
