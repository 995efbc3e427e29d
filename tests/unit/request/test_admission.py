from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memory_extproc.model import Outcome, Signals, Switch
from memory_extproc.model.headers import Headers, RequestHeaders
from memory_extproc.request.admission import (
    Admission,
    Admitted,
    ArrivalQueue,
    Declined,
    LoadLimit,
    controls_of,
    signals_of,
    truth,
)
from memory_extproc.request.identity import Identity
from memory_extproc.settings.identity import IdentitySection
from memory_extproc.settings.traffic import SignalsSection
from tests.support.sidecar import request_settings

CHAT = {":method": "POST", ":path": "/v1/chat/completions?x=1", "content-type": "application/json; charset=utf-8"}


def admission(**options: Any) -> Admission:
    return Admission(request_settings(**options), Identity(IdentitySection()))


def a_request(last: bool = False, attributes: dict[str, Any] | None = None, **changes: str) -> RequestHeaders:
    """A chat request; header names are written with _ for -, and an empty value takes the header out."""
    pairs = {**CHAT, **{name.replace("_", "-"): value for name, value in changes.items()}}
    headers = Headers((name, value) for name, value in pairs.items() if value)
    return RequestHeaders(headers, last=last, attributes=attributes or {})


def test_a_chat_request_is_admitted_with_its_caller() -> None:
    admitted = admission().admit(a_request(x_authz_user_id="ann", attributes={"xds.route_name": "r1"}))
    assert isinstance(admitted, Admitted)
    assert admitted.dialect.name == "chat_completions"
    assert admitted.caller is not None
    assert admitted.route == "r1"


@pytest.mark.parametrize("content_type", ["application/json", "application/vnd.api+json", "Application/JSON"])
def test_json_by_any_of_its_names_is_admitted(content_type: str) -> None:
    assert isinstance(admission().admit(a_request(content_type=content_type)), Admitted)


@pytest.mark.parametrize(
    "event",
    [
        a_request(last=True),
        a_request(content_type=""),
        a_request(content_type="text/json"),
        a_request(content_type="application/x-www-form-urlencoded"),
        a_request(upgrade="websocket"),
        RequestHeaders(
            Headers([(":method", "CONNECT"), (":path", "/v1/responses"), (":protocol", "websocket")]), False
        ),
        RequestHeaders(Headers([*({**CHAT, ":path": "/v1/models"}).items()]), False),
        RequestHeaders(Headers([*({**CHAT, ":method": "GET"}).items()]), False),
        RequestHeaders(Headers(), False),
    ],
)
def test_everything_else_is_not_chat(event: RequestHeaders) -> None:
    assert admission().admit(event) == Declined(Outcome.NOT_CHAT)


@pytest.mark.parametrize(("length", "admitted"), [("100", True), ("101", False), ("1e9", True), ("-5", True)])
def test_a_body_announced_as_too_large_is_declined_before_it_is_buffered(length: str, admitted: bool) -> None:
    found = admission(request_body=100).admit(a_request(content_length=length))
    assert isinstance(found, Admitted) is admitted


def test_the_upstream_never_sees_what_is_for_us() -> None:
    headers = Headers(
        [
            ("X-Memory-Anything", "1"),
            ("x-memory-anything", "2"),
            ("x-disable-router-memory", "false"),
            ("x-vsr-matched-fact-check", "needs_fact_check"),
            ("x-authz-user-id", "ann"),
            ("authorization", "secret"),
        ]
    )
    removed = ("x-disable-router-memory", "x-memory-anything", "x-vsr-matched-fact-check")
    assert admission().removals(headers) == removed
    stripping = admission(identity=IdentitySection(strip_headers=True))
    assert stripping.removals(headers) == tuple(sorted((*removed, "x-authz-user-id")))


@pytest.mark.parametrize(
    ("pairs", "retrieve", "store"),
    [
        ([], Switch.DEFAULT, Switch.DEFAULT),
        ([("x-memory-retrieve", "Skip")], Switch.SKIP, Switch.DEFAULT),
        ([("x-memory-retrieve", "force"), ("x-memory-store", "force")], Switch.FORCE, Switch.FORCE),
        ([("x-memory-retrieve", "force"), ("x-memory-retrieve", "skip")], Switch.SKIP, Switch.DEFAULT),
        ([("x-memory-retrieve", "maybe")], Switch.DEFAULT, Switch.DEFAULT),
        ([("x-memory-retrieve", "off"), ("x-memory-store", "False")], Switch.SKIP, Switch.SKIP),
        ([("x-memory-retrieve", "force, 0"), ("x-memory-store", "yes")], Switch.SKIP, Switch.DEFAULT),
        ([("x-disable-router-memory", "true"), ("x-memory-retrieve", "force")], Switch.SKIP, Switch.SKIP),
        ([("x-disable-router-memory", "no")], Switch.DEFAULT, Switch.DEFAULT),
        ([("x-memory-incognito", "true"), ("x-memory-store", "force")], Switch.DEFAULT, Switch.SKIP),
        ([("x-memory-retrieve", "force, Skip"), ("x-memory-store", "skip,skip")], Switch.SKIP, Switch.SKIP),
        ([("x-disable-router-memory", "false,true")], Switch.SKIP, Switch.SKIP),
        ([("x-memory-incognito", "true, true")], Switch.DEFAULT, Switch.SKIP),
    ],
)
def test_of_contradicting_wishes_the_narrower_wins(
    pairs: Sequence[tuple[str, str]], retrieve: Switch, store: Switch
) -> None:
    controls = controls_of(Headers(pairs))
    assert (controls.retrieve, controls.store) == (retrieve, store)


def test_the_end_of_a_session_and_our_own_calls_are_recognised() -> None:
    assert controls_of(Headers([("x-memory-session", "end")])).ends_session
    assert controls_of(Headers([("x-memory-session", "end, end")])).ends_session
    assert not controls_of(Headers([("x-memory-session", "start")])).ends_session
    assert controls_of(Headers([("x-memory-extproc-internal", "")])).internal


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("true", True),
        (" TRUE ", True),
        ("1", True),
        ("false", False),
        ("off", False),
        ("needs_fact_check", True),
        ("no_fact_check_needed", False),
        (True, True),
        (False, False),
        ("perhaps", None),
        ("", None),
        (1.0, None),
        (None, None),
    ],
)
def test_what_a_router_means(value: object, meant: bool | None) -> None:
    assert truth(value) is meant


def test_envoys_metadata_comes_before_headers_which_a_client_could_write() -> None:
    sources = SignalsSection(metadata_namespace="router")
    headers = Headers([("x-memory-signal-fact", "true"), ("x-memory-signal-tool", "true")])
    assert signals_of(headers, {"router": {"fact": False}}, sources) == Signals(fact=False, tool=True)
    assert signals_of(headers, {"router": "odd"}, sources) == Signals(fact=True, tool=True)


def test_an_unknown_signal_is_none_and_the_next_source_is_asked() -> None:
    headers = Headers([("x-memory-signal-fact", "?"), ("x-vsr-matched-fact-check", "no_fact_check_needed")])
    assert signals_of(headers, {}, SignalsSection()) == Signals(fact=False)


def test_signals_that_were_joined_on_the_way_are_read_one_by_one() -> None:
    headers = Headers([("x-memory-signal-fact", "?, no"), ("x-memory-signal-tool", "true,true")])
    assert signals_of(headers, {}, SignalsSection()) == Signals(fact=False, tool=True)


class Arrivals:
    """Requests that Envoy has had for a while when we see them. Its clock is *ahead* of ours."""

    LATE, HOPELESS = timedelta(milliseconds=50), timedelta(milliseconds=500)

    def __init__(self, ahead: float = 0.0) -> None:
        self.now, self.ahead = 1_800_000_000.0, ahead
        options = request_settings(deadline=3 * self.LATE, message_timeout=2 * self.HOPELESS)
        queue, load = ArrivalQueue(self.LATE, lambda: self.now), LoadLimit(clock=lambda: self.now)
        self._admission = Admission(options, Identity(IdentitySection()), load, queue)

    def after(self, waited: float, *, gap: float = 0.01) -> str:
        """What becomes of the next request, *gap* seconds after the last one, if it has waited so many."""
        self.now += gap
        arrived = datetime.fromtimestamp(self.now - waited + self.ahead, UTC).isoformat()
        found = self._admission.admit(a_request(attributes={"request.time": arrived}))
        if isinstance(found, Declined):
            assert found.outcome is Outcome.OVERLOADED
            return "passed"
        return "late" if found.late else "in time"


@pytest.mark.parametrize("ahead", [0.0, 2.5, -2.5])
def test_behind_a_queue_requests_get_no_memory_and_behind_a_long_one_they_pass_unread(ahead: float) -> None:
    arrivals = Arrivals(ahead)
    assert arrivals.after(0.001) == "in time"
    assert [arrivals.after(0.06) for _ in range(9)] == ["in time"] * 7 + ["late"] * 2
    assert arrivals.after(0.6) == "passed"
    assert arrivals.after(0.02) == "in time", "the queue is over"
    assert arrivals.after(0.6) == "in time", "one is no queue"


def test_requests_that_come_one_by_one_are_never_late_however_slow_the_machine_is() -> None:
    arrivals = Arrivals()
    assert arrivals.after(0.001) == "in time"
    assert {arrivals.after(0.3, gap=2.0) for _ in range(30)} == {"in time"}


def test_a_clock_that_was_set_is_no_queue_for_long() -> None:
    arrivals = Arrivals()
    assert arrivals.after(0.001) == "in time"
    arrivals.ahead = -3.0
    found = [arrivals.after(0.001, gap=0.1) for _ in range(1200)]
    assert found[20] == "passed"
    assert set(found[-100:]) == {"in time"}


@pytest.mark.parametrize("arrived", [None, "", "yesterday", 12.5, {}])
def test_without_a_time_of_arrival_no_request_is_late(arrived: object) -> None:
    found = [admission().admit(a_request(attributes={"request.time": arrived})) for _ in range(20)]
    assert not any(isinstance(one, Admitted) and one.late for one in found)
    assert all(isinstance(one, Admitted) for one in found)
