"""Which memories of others a request may reach beside the caller's own, and whose its words become. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from memory_extproc.model import Caller, Owner, digest


class Everyone(StrEnum):
    """How far an operator's memories reach."""

    NOBODY = "nobody"
    TENANT = "tenant"  # each tenant has a set of its own
    ALL = "all"  # there is one set, for the callers of every tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What the operator lets be shared. Membership is what `Caller.projects` says, and nothing else."""

    projects: bool = False
    learns: bool = False  # what is said in a project's name becomes the project's
    most_projects: int = 4  # searched for one request, in the order in which they were verified
    everyone: Everyone = Everyone.NOBODY

    def owners(self, caller: Caller) -> tuple[Owner, ...]:
        """Whose memories are recalled beside *caller*'s. A request that names a project reaches that one alone, and
        only if the caller is its member."""
        tenant = caller.owner.tenant
        named = (caller.project,) if caller.project else caller.projects
        mine = [project for project in named if project in caller.projects] if self.projects else []
        shared = [Owner.of_project(tenant, project) for project in mine[: self.most_projects]]
        if self.everyone is Everyone.TENANT:
            shared.append(Owner.of_everyone(tenant))
        elif self.everyone is Everyone.ALL:
            shared.append(Owner.of_everyone())
        return tuple(shared)

    def learned_as(self, caller: Caller) -> Caller:
        """Who is to be taken to have spoken: *caller*, or the project that they named and are a member of."""
        if not (self.learns and caller.project and caller.project in caller.projects):
            return caller
        # Members who open with the same words, or name a session alike, are in conversations of their own.
        session = caller.session and digest("member", caller.owner.key, caller.session)
        owner = Owner.of_project(caller.owner.tenant, caller.project)
        speaker = digest("speaker", caller.owner.key)
        return replace(caller, owner=owner, session=session, speaker=speaker, spoken_by=caller)


def circle_of(shared: tuple[Owner, ...], origins: tuple[str, ...], epochs: tuple[int, ...]) -> str:
    """Names what a request may be given beyond the plain case, for which it is empty. Blocks that a conversation
    was given within one circle are not put back within another: who left a project, who asks through a route that
    is told less, and who asks after something shared was forgotten, begin without them."""
    if not (shared or origins):
        return ""
    owners = (f"{owner.key}:{epoch}" for owner, epoch in zip(shared, epochs, strict=True))
    return digest("circle", *owners, "origins", *origins)
