"""What memories, turns and records are kept in, as configured."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory_extproc.app.coordinating import open_coordination, open_journal, open_link
from memory_extproc.app.erasing import Erasing, open_erasing, take_part
from memory_extproc.app.frame import Frame
from memory_extproc.app.models import open_embedder
from memory_extproc.app.options import milvus_options, partition_limits
from memory_extproc.app.passing import steady_now
from memory_extproc.app.sealing import open_keys, sealed_coordination, sealed_journal, sealed_store
from memory_extproc.coordination.replicas import OldestWaiting
from memory_extproc.erasure.forgotten import HidingStore
from memory_extproc.learn.journal_spare import Check
from memory_extproc.ports import Coordination, Embeds, Journal, MemoryStore
from memory_extproc.sealing.keys import WrappedKeys
from memory_extproc.store.milvus import MilvusStore
from memory_extproc.store.opener import Opener, OpenerLimits
from memory_extproc.store.partition import Partitions

if TYPE_CHECKING:
    from memory_extproc.redis_link import RedisLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What both paths stand on; it outlasts whatever writes to it."""

    embedder: Embeds
    link: RedisLink | None  # None: no Redis is configured
    keys: WrappedKeys | None  # None: texts rest as they are
    coordination: Coordination
    store: MilvusStore
    unsealed: MemoryStore  # the same rows, with what was forgotten and is not erased yet
    shown: HidingStore  # without that
    erasing: Erasing
    partitions: Partitions
    journal: Journal
    writable: Check  # whether a turn could be journalled now
    oldest_aside: OldestWaiting  # of the turns put aside while the shared journal was away


async def open_kept(frame: Frame) -> Kept:
    settings, data, stack, now = frame.settings, frame.data, frame.stack, frame.now
    embedder = await open_embedder(settings, frame.metrics, stack, frame.live)
    link = await open_link(settings, frame.metrics, stack, frame.live)
    keys = await open_keys(settings, data, link, stack)
    records = await open_coordination(settings, data, link, now, stack)
    coordination = sealed_coordination(records, keys)
    options = milvus_options(settings, data, embedder.fingerprint)
    store = MilvusStore(options, frame.metrics, now=now)
    await stack.enter_async_context(Opener(store, OpenerLimits(), chance=random.random, at=options.place))
    erasing = await open_erasing(
        settings,
        data,
        link,
        stack,
        frame.metrics,
        shared=store.meta(),
        wraps=None if keys is None else keys.master,
    )
    unsealed = sealed_store(settings, store, keys, frame.metrics)
    shown = erasing.hiding(unsealed)
    limits, forgotten = partition_limits(settings), erasing.forgotten
    partitions = await stack.enter_async_context(
        Partitions(shown, coordination, limits, frame.metrics, now=now, steady=steady_now, forgotten=forgotten)
    )
    journal, writable, oldest_aside = await open_journal(
        settings,
        data,
        link,
        now,
        stack,
        store_failing_for=lambda: store.failing_for,
        reports_held=frame.metrics.journal_parts.set,
    )
    await take_part(erasing, partitions, stack)
    return Kept(
        embedder=embedder,
        link=link,
        keys=keys,
        coordination=coordination,
        store=store,
        unsealed=unsealed,
        shown=shown,
        erasing=erasing,
        partitions=partitions,
        journal=sealed_journal(journal, keys),
        writable=writable,
        oldest_aside=oldest_aside,
    )
