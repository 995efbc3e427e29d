"""Topics and summaries as configured."""

from __future__ import annotations

import random
import uuid
from contextlib import AsyncExitStack

from memory_extproc.app.live import Live
from memory_extproc.app.models import completions_for
from memory_extproc.app.passing import steady_now
from memory_extproc.learn.asking import Asks
from memory_extproc.learn.budget import Budget
from memory_extproc.learn.remember import provenance
from memory_extproc.learn.strict_schema import strict_schema
from memory_extproc.model import message_id_of
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Embeds, KeepsMemories, Now
from memory_extproc.safety.poison import suspicion
from memory_extproc.sealing.box import sealable
from memory_extproc.settings import Settings
from memory_extproc.settings.memory import ModelRole
from memory_extproc.topics.closing import Closing
from memory_extproc.topics.follower import TopicLimits, Topics
from memory_extproc.topics.rebuilding import Rebuilding
from memory_extproc.topics.sayings import Sayings
from memory_extproc.topics.shift import ShiftLimits
from memory_extproc.topics.summing import SESSION, SHIFT, TOPIC, Named, Prompts, Same, Summaries, Summed, prompt


def make_summing(
    settings: Settings,
    budget: Budget,
    embedder: Embeds,
    metrics: Metrics,
    stack: AsyncExitStack,
    live: Live | None = None,
    *,
    now: Now,
) -> tuple[Summaries, Rebuilding]:
    """What sums up, and what does it again. Also where topics are switched off: there may be some from before."""
    prompts = _prompts(settings, budget, metrics, stack, live)
    summaries = Summaries(embedder, metrics, prompts=prompts, trusted=lambda text: suspicion(text) is None)
    least, most = shift_limits(settings).least, _content_bytes(settings)
    return summaries, Rebuilding(summaries, embedder, now=now, least=least, content_bytes=most)


def _content_bytes(settings: Settings) -> int:
    content = settings.limits.content_bytes
    return sealable(content) if settings.privacy.encrypt_content else content


async def open_topics(
    settings: Settings,
    summaries: Summaries,
    keeps: KeepsMemories,
    embedder: Embeds,
    coordination: Coordination,
    metrics: Metrics,
    stack: AsyncExitStack,
    live: Live,
    *,
    now: Now,
) -> Topics | None:
    if not settings.topics.enabled:
        return None
    topics = make_topics(settings, summaries, keeps, embedder, coordination, metrics, now=now)
    live.follow(lambda new: topics.use(topic_limits(new)))
    return await stack.enter_async_context(topics)


def make_topics(
    settings: Settings,
    summaries: Summaries,
    keeps: KeepsMemories,
    embedder: Embeds,
    coordination: Coordination,
    metrics: Metrics,
    *,
    now: Now,
) -> Topics:
    """To be entered, whether or not they are switched on."""
    limits = topic_limits(settings)
    sayings = Sayings(keeps, message_id_of)
    closing = Closing(
        keeps,
        sayings,
        summaries,
        embedder,
        now=now,
        least=limits.shift.least,
        content_bytes=_content_bytes(settings),
    )
    return Topics(
        sayings,
        closing,
        summaries,
        embedder,
        coordination,
        limits,
        metrics,
        now=now,
        steady=steady_now,
        chance=random.random,
        holder=uuid.uuid4().hex,
        provenance=lambda turn: provenance(turn.origin),
    )


def topic_limits(settings: Settings) -> TopicLimits:
    return TopicLimits(shift=shift_limits(settings), idle=settings.topics.idle, grace=settings.shutdown.flush)


def shift_limits(settings: Settings) -> ShiftLimits:
    topics = settings.topics
    return ShiftLimits(same=topics.same, apart=topics.apart, characters=topics.characters)


def _prompts(
    settings: Settings, budget: Budget, metrics: Metrics, stack: AsyncExitStack, live: Live | None
) -> Prompts | None:
    deciding = settings.model_for(ModelRole.MEMORY_TOPICS)
    summing = settings.model_for(ModelRole.MEMORY_SUMMARY)
    if settings.topics.model == "off" or deciding is None or summing is None:
        return None
    decides = completions_for(deciding, ModelRole.MEMORY_TOPICS, metrics, stack, live)
    sums = completions_for(summing, ModelRole.MEMORY_SUMMARY, metrics, stack, live)
    return Prompts(
        shift=Asks(decides, SHIFT, strict_schema(Same), budget, words=prompt(SHIFT)),
        topic=Asks(sums, TOPIC, strict_schema(Named), budget, words=prompt(TOPIC)),
        session=Asks(sums, SESSION, strict_schema(Summed), budget, words=prompt(SESSION)),
    )
