"""The least that an ext_proc server can do, with the same library and messages as ours: what the wire costs.

`python -m benchmarks.peer EXTRA` answers every message and, if EXTRA is above 0, replaces the request body by
itself and EXTRA more bytes, as a block of memories would lengthen it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping

import grpc.aio

from benchmarks.lines import say, until_input_ends
from memory_extproc.extproc.gen import ext_proc_pb2 as pb
from memory_extproc.extproc.processor import SERVICE

Stream = grpc.aio.ServicerContext[pb.ProcessingRequest, pb.ProcessingResponse]

ANSWERS: Mapping[str, Callable[[], pb.ProcessingResponse]] = {
    "request_headers": lambda: pb.ProcessingResponse(request_headers=pb.HeadersResponse()),
    "request_body": lambda: pb.ProcessingResponse(request_body=pb.BodyResponse()),
    "response_headers": lambda: pb.ProcessingResponse(response_headers=pb.HeadersResponse()),
    "response_body": lambda: pb.ProcessingResponse(response_body=pb.BodyResponse()),
}


class Peer:
    def __init__(self, extra: int) -> None:
        self._padding = b" " * extra  # behind the JSON, where it changes nothing

    async def process(self, requests: AsyncIterator[pb.ProcessingRequest], context: Stream) -> None:
        async for message in requests:
            kind = message.WhichOneof("request")
            assert kind is not None
            answer = ANSWERS[kind]()
            if kind == "request_body" and self._padding:
                common = answer.request_body.response
                common.body_mutation.body = message.request_body.body + self._padding
                length = common.header_mutation.set_headers.add()
                length.header.key = "content-length"
                length.header.raw_value = str(len(common.body_mutation.body)).encode()
                length.append_action = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
            await context.write(answer)


async def main(extra: int) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handler = grpc.stream_stream_rpc_method_handler(
        Peer(extra).process,
        request_deserializer=pb.ProcessingRequest.FromString,
        response_serializer=pb.ProcessingResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    say({"port": port})
    await until_input_ends()
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
