"""Everything that keeps something of people, in memory, with a forgetter over it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from memory_extproc.concurrency import Backoff
from memory_extproc.coordination.sqlite import SoleReplica
from memory_extproc.erasure.forgetter import ForgetLimits, Forgetter
from memory_extproc.erasure.receipts import ReceiptSigner
from memory_extproc.erasure.steps import Erasable
from memory_extproc.erasure.tombstones import TombstoneFilteringStore, TombstoneIndex
from memory_extproc.learn.messages import judge
from memory_extproc.learn.reconcile import ComingMemories
from memory_extproc.model import Embedded, ForgetReceipt, ForgetScope, ForgetState, Memory, Owner, WaitingPlace
from memory_extproc.ports import Ledger, Replicas
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryJournal, InMemoryLedger
from tests.support.builders import ANN
from tests.unit.learn.learning import ListingExtractor, Surroundings, until

EVERYTHING = ForgetScope()
LIMITS = ForgetLimits(
    patience=timedelta(seconds=5),
    backoff=Backoff(timedelta(milliseconds=1), timedelta(milliseconds=2)),
)


class FakeReplicas(SoleReplica):
    """Replicas in one process: what one tells all have heard. *places*: where accepted turns wait out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Callable[[str], Awaitable[None]]] = []
        self.places: list[WaitingPlace] = []

    async def tell(self, subject: str) -> None:
        for heard in list(self.heard):
            await heard(subject)

    async def waiting(self, owner: Owner | None = None) -> Sequence[WaitingPlace]:
        return list(self.places)


class Files:
    """A store that purges at once, or one that leaves it to a server; *down* while it does not answer."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.purged: list[Owner] = []

    async def purge(self, owner: Owner) -> bool:
        self.purged.append(owner)
        return self.at_once


@dataclass
class World(Surroundings):
    """Surroundings of a learner whose partitions and journal know what was forgotten."""

    ledger: Ledger = field(default_factory=InMemoryLedger)
    replicas: Replicas = field(default_factory=SoleReplica)
    forget_limits: ForgetLimits = LIMITS
    files: Files = field(default_factory=Files)
    signer: ReceiptSigner | None = None
    by_rules_alone: bool = True
    dropped: list[Owner] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.build_partitions()

    def build_partitions(self) -> None:
        """What one process holds in memory."""
        self.forgotten: TombstoneIndex = TombstoneIndex(self.ledger, self.replicas)
        self.hiding = TombstoneFilteringStore(self.store, self.forgotten)
        self.partitions = Partitions(
            self.hiding,
            self.coordination,
            PartitionLimits(),
            self.metrics,
            now=lambda: self.now,
            forgotten=self.forgotten,
        )
        self.keeps = self.partitions

    def forgetter(self, *, holder: str = "") -> Forgetter:
        made = Forgetter(
            self.ledger,
            self.forgotten,
            Erasable(
                replicas=self.replicas,
                store=self.store,
                partitions=self.partitions,
                journal=self.journal,
                coordination=self.coordination,
                purges=self.files,
                caches=(self.dropped.append,),
                foresees=ComingMemories(
                    judge, ListingExtractor(), by_rules_alone=self.by_rules_alone, now=lambda: self.now
                ),
            ),
            self.forget_limits,
            self.metrics,
            now=lambda: self.now,
            holder=holder,
            signer=self.signer,
        )
        self.hiding.found = made.sweep
        return made

    def next_process(self, **changes: Any) -> World:
        """Another process over the same stores: what only this one held in memory is gone."""
        other = replace(self, shared_store=self.store, **changes)
        other.coordination, other.journal = self.coordination, self.journal
        other.sessions = self.sessions
        if isinstance(self.journal, InMemoryJournal):
            self.journal.reopen()
        other.build_partitions()
        return other

    async def put(self, *memories: Memory) -> None:
        vectors = await self.embedder.embed([memory.content for memory in memories])
        rows = [Embedded(memory, vector) for memory, vector in zip(memories, vectors, strict=True)]
        for row in rows:
            await self.partitions.put(row.memory.owner, [row])

    async def contents(self, owner: Owner = ANN) -> set[str]:
        """What the store holds, whatever is hidden of it."""
        return {memory.content for memory in await self.rows(owner)}


async def complete(forgetter: Forgetter, receipt: ForgetReceipt, owner: Owner = ANN) -> ForgetReceipt:
    """The receipt once its forget is complete."""
    latest = receipt

    async def is_complete() -> bool:
        nonlocal latest
        found = await forgetter.receipt(owner, receipt.id)
        assert found is not None
        latest = found
        return latest.state is ForgetState.COMPLETE

    await until(is_complete, "the forget is complete")
    return latest
