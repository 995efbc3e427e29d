"""Runs all checks in order, respects their dependencies, and cleans up afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from memory_extproc.doctor import check_envoy, checks
from memory_extproc.doctor.check_envoy import FilterChain, read_chains, read_counters
from memory_extproc.doctor.gateway import CheckVerdict, Finding, GatewayVisit, ok, unknown, warn

Check = Callable[[GatewayVisit], Awaitable[Finding]]
Report = Callable[[Finding], None]

# If these fail, the remaining checks would repeat the same fault.
_FIRST: tuple[Check, ...] = (checks.reaches_a_model, checks.memory_is_there)
_ANYBODY: tuple[Check, ...] = (
    checks.cannot_be_forged,
    checks.body_cannot_name,
    checks.large_bodies,
    checks.packed_requests,
    checks.packed_answers,
)
_CALLERS: tuple[Check, ...] = (
    checks.remembers,
    checks.two_people,
    checks.reaches_the_model,
    checks.credentials_outweigh_headers,
    checks.opting_out,
    checks.streams,
    checks.tool_loops,
)
_FORGOTTEN = 200


async def examine(visit: GatewayVisit, admin: Admin | None, report: Report) -> list[Finding]:
    """Run all checks and return the findings in the order of *report*. Planted facts are always forgotten at the
    end."""
    findings = list[Finding]()

    def add_finding(finding: Finding) -> None:
        findings.append(finding)
        report(finding)

    before = await admin.counters() if admin else None
    try:
        await _ask(visit, add_finding)
    finally:
        if visit.kept:
            add_finding(await leave_nothing(visit))
    add_finding(stayed_in_the_path(visit))
    if admin is not None:
        await _look(admin, before, visit.options.body_bytes, add_finding)
    return findings


async def _ask(visit: GatewayVisit, found: Report) -> None:
    for check in _FIRST:
        finding = await check(visit)
        found(finding)
        if finding.verdict is CheckVerdict.FAIL:
            return
    who = await checks.knows_who_asks(visit)
    found(who)
    for check in _ANYBODY:
        found(await check(visit))
    found(await checks.controls_stay(visit))
    if visit.options.roles_header:
        found(await checks.roles_cannot_be_forged(visit))
    if who.verdict is CheckVerdict.OK:
        for check in _CALLERS:
            found(await check(visit))


def stayed_in_the_path(visit: GatewayVisit) -> Finding:
    """All responses of the visit: a response without the header bypassed memory silently."""
    check = "stays-in-the-path"
    good = [answer for answer in visit.gateway.answers if answer.good]
    silent = sum(not answer.memory for answer in good)
    late = sum(answer.outcome == "out_of_time" for answer in good)
    away = sum(answer.outcome in {"unavailable", "overloaded"} for answer in good)
    if not good or silent == len(good):
        return unknown(check, "memory was in none of the answers")
    if silent:
        return warn(
            check,
            f"{silent} of {len(good)} answers had no x-memory-status",
            "Envoy fails open now and then: timeouts, a replica that is away, a full circuit breaker; or a "
            "cache answers. "
            "--admin tells which; alert on envoy_http_ext_proc_memory_failure_mode_allowed",
        )
    if late or away:
        return warn(
            check,
            f"of {len(good)} recalls {late} were out of time and {away} could not be made",
            "recall_seconds{stage} and store_up of the sidecar tell why",
        )
    return ok(check, f"memory was in each of {len(good)} answers")


async def leave_nothing(visit: GatewayVisit) -> Finding:
    """Forget the conversations with planted facts, through the memory API."""
    check = "leaves-nothing-behind"
    left = list[str]()
    for person, session in visit.kept:
        answer = await visit.gateway.call("DELETE", f"/v1/memory?session_id={session}", person.headers)
        if answer.status != _FORGOTTEN:
            left.append(f"{session} (HTTP {answer.status})")
    if not left:
        return ok(check, f"what {len(visit.kept)} conversations told is forgotten")
    return warn(
        check,
        f"the memory API cannot be reached beside the chats, so these conversations stay: {', '.join(left)}",
        "memory-extproc memory forget --session SESSION --as USER, for each of them",
    )


class Admin:
    """Envoy's admin page at *url*. Calls raise aiohttp.ClientError, ValueError or TimeoutError."""

    def __init__(self, session: aiohttp.ClientSession, url: str, named: str = "") -> None:
        self._session, self._url, self._named = session, url.rstrip("/"), named

    async def counters(self) -> dict[str, int]:
        return read_counters(await self._read("/stats?format=json&usedonly"))

    async def chains(self) -> list[FilterChain]:
        return read_chains(await self._read("/config_dump"), self._named)

    async def clusters(self) -> Mapping[str, Any]:
        return await self._read("/clusters?format=json")

    async def _read(self, path: str) -> Mapping[str, Any]:
        async with self._session.get(self._url + path) as got:
            got.raise_for_status()
            read = await got.json(content_type=None)
        if not isinstance(read, Mapping):
            raise ValueError("not what Envoy's admin page says")  # noqa: TRY004 - as JSON that cannot be read
        return read


async def _look(admin: Admin, before: Mapping[str, int] | None, body_bytes: int, found: Report) -> None:
    chains = await admin.chains()
    found(check_envoy.the_order(chains))
    found(check_envoy.the_modes(chains))
    found(check_envoy.the_limits(chains, body_bytes))
    found(check_envoy.the_timeouts(chains))
    found(check_envoy.reaches_memory(chains, await admin.clusters()))
    if before is not None:
        found(check_envoy.passed_by(before, await admin.counters()))
