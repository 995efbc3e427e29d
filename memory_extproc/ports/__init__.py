"""Ports: small protocols, defined by the parts that call them.

Every adapter, fakes included, passes its port's contract suite under tests/contract. All methods may raise
TransientError or PermanentError (errors.py), and no other errors of their own."""

from memory_extproc.ports.coordination import (
    ConsentRecords,
    ConsentRegistry,
    Coordination,
    IncognitoMarker,
    Journal,
    JournalDepth,
    JournalEntry,
    KeyStore,
    KeyWrapper,
    Mirror,
    OwnerEntry,
    OwnerRegistry,
)
from memory_extproc.ports.services import (
    Chain,
    ChainReader,
    Chance,
    ChatCondenser,
    CompletionModel,
    EmbeddingModel,
    Exported,
    Ledger,
    MemoryExporter,
    MemoryForgetter,
    MemoryImporter,
    MemoryRecaller,
    Now,
    ProfileReader,
    QueryGate,
    Replicas,
    RerankModel,
    RunningImport,
    SignalClassifier,
    Steady,
    StorePurger,
    TokenEmbeddingModel,
    TombstoneReader,
    TurnLearner,
    TurnReceipts,
)
from memory_extproc.ports.store import (
    Change,
    ComingVector,
    ConditionalWriter,
    HeadLister,
    MemoryLister,
    MemoryReader,
    MemorySearcher,
    MemorySelector,
    MemoryStore,
    MemoryWriter,
    OwnerLister,
)
