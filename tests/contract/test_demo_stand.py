"""`make run`, as far as it goes without an Envoy: what it says before anything is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from rich.console import Console

from demo import stand


def test_a_port_in_use_is_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = Path("config.yaml")
    config.write_text(
        "listen: {ext_proc: '127.0.0.1:0', api: '127.0.0.1:0', console: '127.0.0.1:0', http: '127.0.0.1:0'}\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit, match=f"in use already: {port} \\(Envoy\\)"):
            stand.main(Console(), "", "", config, port)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
