"""The operator's pages: the state of the server, users, dead letters, quarantine, configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.rest import to_json
from memory_extproc.api.service import MemoryService
from memory_extproc.console.pages import Pages, PageVisit, moment, see_other, shown_memory
from memory_extproc.console.sessions import PATH

_LETTERS = 50  # dead letters, and memories of a user, on a page
_USERS = 25


class OperatorPage:
    def __init__(self, pages: Pages, service: MemoryService) -> None:
        self._pages, self._service = pages, service

    def register(self, application: web.Application) -> None:
        router, known = application.router, self._pages.for_reader
        router.add_get(f"{PATH}/operator", known(self._show))
        router.add_get(f"{PATH}/operator/user", known(self._user))
        router.add_post(f"{PATH}/operator/review", known(self._review))
        router.add_post(f"{PATH}/operator/retry", known(self._retry))

    async def _show(self, visit: PageVisit) -> web.StreamResponse:
        status = await self._call("GetServerStatus", pb.GetServerStatusRequest(), visit)
        configured = await self._call("GetConfiguration", pb.GetConfigurationRequest(), visit)
        letters = await self._call("ListDeadLetters", pb.ListDeadLettersRequest(limit=_LETTERS), visit)
        query = visit.request.query
        asked = pb.ListUsersRequest(
            limit=_USERS,
            tenant_id=query.get("tenant", "").strip(),
            page_token=query.get("page", ""),
            quarantined="quarantined" in query,
        )
        users: Any = await self._call("ListUsers", asked, visit)
        filters = {"tenant": asked.tenant_id, **({"quarantined": "on"} if asked.quarantined else {})}
        planned = None
        if query.get("show") == "retention":
            wanted = pb.PlanRetentionRoundRequest(page_token=query.get("from", ""))
            planned = await self._call("PlanRetentionRound", wanted, visit)
        plain = to_json(configured, verbose=True)
        flat = _flat(plain["configuration"])
        shown = to_json(status, verbose=True)
        return self._pages.render(
            "operator.html",
            visit.principal,
            status_=shown,
            examined=moment(shown.get("examined_at", "")),
            oldest=moment(shown.get("oldest_waiting_at", "")),
            since=moment(shown["outcomes_since"]),
            outcomes=sorted(shown["outcomes"].items(), key=lambda one: -int(one[1])),
            users=[{**one, "updated": moment(one["updated_at"])} for one in to_json(users, verbose=True)["users"]],
            filters=filters,
            following=urlencode({**filters, "page": users.next_page_token}) if users.next_page_token else "",
            planned=None if planned is None else to_json(planned, verbose=True),
            hashed=flat.get("privacy.hash_user_ids") == "true",
            sections=sorted(flat.items()),
            waiting=plain["needs_restart"],
            letters=[to_json(letter, verbose=True) for letter in letters.letters],
        )

    async def _user(self, visit: PageVisit) -> web.StreamResponse:
        """Show a user's counts. Showing their words is a separate call, and the audit log has it."""
        query = visit.request.query
        user, words = query.get("user", "").strip(), query.get("show", "")
        stats = await self._call("GetStats", pb.GetStatsRequest(user_id=user), visit)
        consent = await self._pages.get_consent(visit, user)
        held = memories = plan = None
        if words == "quarantine":
            held = await self._call("ListQuarantine", pb.ListQuarantineRequest(user_id=user, limit=_LETTERS), visit)
        elif words == "memories":
            listed = pb.ListMemoriesRequest(user_id=user, limit=_LETTERS)
            memories = await self._call("ListMemories", listed, visit)
        elif words == "retention":
            plan = to_json(
                await self._call("PlanRetention", pb.PlanRetentionRequest(user_id=user), visit), verbose=True
            )
        return self._pages.render(
            "user.html",
            visit.principal,
            user=user,
            stats=to_json(stats, verbose=True),
            consent="" if consent is None else consent.state,
            plan=plan,
            held=None if held is None else [shown_memory(memory) for memory in held.memories],
            memories=None if memories is None else [shown_memory(memory) for memory in memories.memories],
        )

    async def _review(self, visit: PageVisit) -> web.StreamResponse:
        user, chosen = visit.field("user"), visit.form.get("id", [])
        asked = pb.ReviewQuarantineRequest(user_id=user, memory_ids=chosen, verdict=visit.field("verdict"))
        await self._call("ReviewQuarantine", asked, visit)
        return see_other(f"{PATH}/operator/user?{urlencode({'user': user, 'show': 'quarantine'})}")

    async def _retry(self, visit: PageVisit) -> web.StreamResponse:
        await self._call("RetryDeadLetters", pb.RetryDeadLettersRequest(turn_ids=visit.form.get("id", [])), visit)
        return see_other(f"{PATH}/operator")

    async def _call(self, method: str, asked: Any, visit: PageVisit) -> Any:
        return await self._service.call(method, asked, visit.presented)


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{name}.")
        else:
            flat[above + name] = json.dumps(value, ensure_ascii=False)
    return flat
