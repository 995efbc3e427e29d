"""The memory API's own description, for those who speak JSON to it: Envoy's transcoder and the OpenAPI document."""

from __future__ import annotations

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.rpc import error_details_pb2, status_pb2

from memory_extproc.api.gen import memory_pb2

SERVICE: str = memory_pb2.DESCRIPTOR.services_by_name["MemoryService"].full_name


def descriptor_set() -> bytes:
    """A FileDescriptorSet of the service and all it needs, each file after those that it imports. The messages of
    failures are in it because the transcoder can only write what is described."""
    files: dict[str, FileDescriptor] = {}
    for root in (memory_pb2.DESCRIPTOR, status_pb2.DESCRIPTOR, error_details_pb2.DESCRIPTOR):
        _collect(root, files)
    described = FileDescriptorSet()
    for file in files.values():
        file.CopyToProto(described.file.add())
    return described.SerializeToString(deterministic=True)


def _collect(file: FileDescriptor, into: dict[str, FileDescriptor]) -> None:
    if file.name in into:
        return
    for needed in file.dependencies:
        _collect(needed, into)
    into[file.name] = file
