"""What one part asks of another: small protocols in the words of the part that calls.

Every adapter of a port passes that port's contract suite under tests/contract, the fakes too.
All methods may raise TryLaterError or GiveUpError (errors.py) and nothing else of their own.
"""

from memory_extproc.ports.circumstances import Chance, Now, Steady
from memory_extproc.ports.coordination import (
    ConsentRecords,
    Coordination,
    Journal,
    JournalDepth,
    JournalEntry,
    Keys,
    KnowsConsent,
    Mirror,
    NotesIncognito,
    WrapsKeys,
)
from memory_extproc.ports.forgetting import Forgets, KnowsForgotten, Ledger, Purges, Replicas
from memory_extproc.ports.inference import BeginsQueries, Completes, Embeds, ReadsWords, Reranks
from memory_extproc.ports.paths import Chain, Condenses, KnowsChains, KnowsProfile, Learns, Recalls
from memory_extproc.ports.store import (
    Change,
    ComingVector,
    FindsMemories,
    KeepsInOrder,
    KeepsMemories,
    ListsMemories,
    ListsOwners,
    MemoryStore,
    ReadsMemories,
)
from memory_extproc.ports.transfer import Exported, Exports, Importing, Imports

__all__ = [
    "BeginsQueries",
    "Chain",
    "Chance",
    "Change",
    "ComingVector",
    "Completes",
    "Condenses",
    "ConsentRecords",
    "Coordination",
    "Embeds",
    "Exported",
    "Exports",
    "FindsMemories",
    "Forgets",
    "Importing",
    "Imports",
    "Journal",
    "JournalDepth",
    "JournalEntry",
    "KeepsInOrder",
    "KeepsMemories",
    "Keys",
    "KnowsChains",
    "KnowsConsent",
    "KnowsForgotten",
    "KnowsProfile",
    "Learns",
    "Ledger",
    "ListsMemories",
    "ListsOwners",
    "MemoryStore",
    "Mirror",
    "NotesIncognito",
    "Now",
    "Purges",
    "ReadsMemories",
    "ReadsWords",
    "Recalls",
    "Replicas",
    "Reranks",
    "Steady",
    "WrapsKeys",
]
