"""The command's arguments, and how it reports its findings."""

from __future__ import annotations

import pytest
from rich.console import Console
from typer.testing import CliRunner

from memory_extproc.cli.doctor import show, summed_up
from memory_extproc.cli.root import app
from memory_extproc.doctor.gateway import fail, ok, unknown, warn


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "--through: expected"),
        (("--through", "ftp://host"), "--through: expected"),
        (("--through", "http://[::1"), "--through: expected"),
        (("--through", "http://host", "--admin", "host:9901"), "--admin: expected"),
        (("--through", "http://host", "--token", "one"), "--token: give two"),
        (("--through", "http://host", "--header", "secret"), "--header: expected"),
        (("--through", "http://host", "--body-limit", "much"), "--body-limit: "),
        (("--through", "http://host", "--serve-echo", "127.0.0.1:0"), "--serve-echo stands behind"),
        (("--serve-echo", "nowhere"), "--serve-echo: "),
    ],
)
def test_what_cannot_be_used_is_named_before_anything_is_sent(given: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["doctor", *given])
    assert result.exit_code == 2
    assert said in result.output
    assert "secret" not in result.output


def test_what_a_gateway_said_cannot_obey_a_terminal() -> None:
    console = Console(record=True, width=200)
    show(console, warn("a-check", "HTTP 200, x-memory-status: \x1b]0;evil\x07", "mend \x1b[2J it"))
    shown = console.export_text(styles=False)
    assert "warn    a-check: HTTP 200" in shown
    assert "to do: mend" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_the_last_line_names_what_is_broken() -> None:
    sound = [ok("a", "x"), ok("b", "x"), unknown("c", "x", "y")]
    assert summed_up(sound) == "nothing was found broken (2 ok, 1 unknown)"
    assert (
        summed_up([*sound, fail("d", "x", "y"), warn("e", "x", "y")])
        == "broken: d (2 ok, 1 warn, 1 fail, 1 unknown)"
    )
