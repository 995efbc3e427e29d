"""What the running server is configured with, for those who operate it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf.json_format import ParseDict

from memory_extproc.api.call import Call, Operation
from memory_extproc.api.gen import memory_pb2 as pb

Configured = Callable[[], tuple[Mapping[str, Any], Sequence[str]]]  # (plain values, keys that wait for a restart)


class Configuration:
    def __init__(self, configured: Configured) -> None:
        """*configured* gives no secrets."""
        self._configured = configured

    @property
    def operations(self) -> dict[str, Operation]:
        return {"GetConfiguration": self.get}

    async def get(self, _: Call, __: pb.GetConfigurationRequest) -> pb.GetConfigurationResponse:
        effective, waiting = self._configured()
        answer = pb.GetConfigurationResponse(needs_restart=waiting)
        ParseDict(dict(effective), answer.configuration)
        return answer
