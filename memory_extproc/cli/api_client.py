"""Client of the memory API for commands: address, credentials, and readable errors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from memory_extproc.cli.config import AsJson, faults_to_exit
from memory_extproc.cli.output import show_answer
from memory_extproc.errors import ConfigurationError, MemoryExtprocError, PermanentError

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message


USUAL = "127.0.0.1:50052"
_MESSAGE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    address: str = USUAL  # host:port or unix:/path
    tls: bool = False
    ca: Path | None = None  # of the server's certificate; None: the machine's authorities
    cert: Path | None = None  # ours, for mutual TLS
    key: Path | None = None
    token: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)
    as_user: str = field(default="", repr=False)  # where the server believes identity headers
    as_tenant: str = ""
    timeout: float = 30.0  # seconds, of a call that is no stream


class ApiError(MemoryExtprocError):
    """A call that failed, in words for people."""

    def __init__(self, message: str, *, code: str, reason: str = "") -> None:
        super().__init__(message)
        self.code, self.reason = code, reason

    @property
    def wrong_use(self) -> bool:
        """Whether other arguments would help."""
        return self.code in {"INVALID_ARGUMENT", "OUT_OF_RANGE"}


class ApiClient:
    """Calls of the memory API by name. Every failure is an ApiError."""

    def __init__(self, channel: grpc.Channel, connection: Connection) -> None:
        # Imported here for a quick `--help`: gRPC takes a third of a second.
        from memory_extproc.api.gen import memory_pb2  # noqa: PLC0415

        self._stub = open_stub(channel)
        self._methods = memory_pb2.DESCRIPTOR.services_by_name["MemoryService"].methods_by_name
        self._connection = connection
        self._sent = tuple(_headers(connection))

    def message(self, method: str, /, **fields: Any) -> Message:
        """The request of *method* with *fields*; None leaves a field out."""
        from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415

        return GetMessageClass(self._methods[method].input_type)(**fields)

    def call(self, method: str, /, **fields: Any) -> Any:
        """The answer to a single request."""
        with _api_errors(self._connection.address):
            send = getattr(self._stub, method)
            return send(self.message(method, **fields), metadata=self._sent, timeout=self._connection.timeout)

    def list_pages(self, method: str, name: str, most: int, /, **fields: Any) -> tuple[list[Any], int]:
        """At most *most* entries of the list *name*, over as many pages as it takes, and the total."""
        entries: list[Any] = []
        token = ""
        while True:
            page = self.call(method, limit=min(100, most - len(entries)), page_token=token, **fields)
            entries += getattr(page, name)
            token = page.next_page_token
            if not token or len(entries) >= most:
                return entries, page.total

    def stream(self, method: str, /, **fields: Any) -> Iterator[Any]:
        """The stream of answers, without a time limit."""
        with _api_errors(self._connection.address):
            yield from getattr(self._stub, method)(self.message(method, **fields), metadata=self._sent)

    def send(self, method: str, requests: Iterable[Message]) -> Any:
        """The answer to a stream of requests. Exceptions of *requests* pass through."""
        raised: list[MemoryExtprocError] = []

        def watch_requests() -> Iterator[Message]:
            try:
                yield from requests
            except MemoryExtprocError as error:
                raised.append(error)
                raise

        try:
            with _api_errors(self._connection.address):
                return getattr(self._stub, method)(watch_requests(), metadata=self._sent)
        except ApiError:
            if raised:
                raise raised[0] from None
            raise


def open_stub(channel: grpc.Channel | grpc.aio.Channel) -> Any:
    """The calls of the memory API on *channel*, by the name of the method."""
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415

    from memory_extproc.api.gen import memory_pb2  # noqa: PLC0415

    service = memory_pb2.DESCRIPTOR.services_by_name["MemoryService"]
    stub = SimpleNamespace()
    for method in service.methods:
        kinds = ("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))
        call = getattr(channel, "_".join(kinds))(
            f"/{service.full_name}/{method.name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        setattr(stub, method.name, call)
    return stub


@contextmanager
def connect_api(connection: Connection) -> Iterator[ApiClient]:
    import grpc  # noqa: PLC0415 - quick `--help`

    options = [("grpc.max_receive_message_length", _MESSAGE_BYTES)]
    credentials = _credentials(connection)
    if credentials is None:
        channel = grpc.insecure_channel(connection.address, options)
    else:
        channel = grpc.secure_channel(connection.address, credentials, options)
    with channel:
        yield ApiClient(channel, connection)


def _credentials(connection: Connection) -> grpc.ChannelCredentials | None:
    import grpc  # noqa: PLC0415

    files = {"--tls-ca": connection.ca, "--tls-cert": connection.cert, "--tls-key": connection.key}
    if not connection.tls and not any(files.values()):
        return None
    if (connection.cert is None) != (connection.key is None):
        raise ConfigurationError(["--tls-cert, --tls-key: one without the other"])
    read: dict[str, bytes | None] = {}
    for option, path in files.items():
        try:
            read[option] = None if path is None else path.read_bytes()
        except OSError as error:
            raise ConfigurationError([f"{option}: {path} cannot be read: {error.strerror}"]) from error
    return grpc.ssl_channel_credentials(read["--tls-ca"], read["--tls-key"], read["--tls-cert"])


def _headers(connection: Connection) -> Iterator[tuple[str, str]]:
    if connection.token:
        yield "authorization", f"Bearer {connection.token}"
    if connection.api_key:
        yield "x-api-key", connection.api_key
    if connection.as_user:
        yield "x-authz-user-id", connection.as_user
        if connection.as_tenant:
            yield "x-authz-tenant-id", connection.as_tenant


@contextmanager
def _api_errors(address: str) -> Iterator[None]:
    import grpc  # noqa: PLC0415

    try:
        yield
    except grpc.RpcError as error:
        raise _in_words(error, address) from None
    except ValueError as error:  # of gRPC, for a header that cannot be sent
        raise PermanentError(str(error)) from error


_WORDS = {
    "UNAUTHENTICATED": "the memory API does not know who you are: try --token, --api-key or --as",
    "PERMISSION_DENIED": "you may not do that",
    "UNIMPLEMENTED": "this memory API does not offer that",
    "DEADLINE_EXCEEDED": "the memory API did not answer in time",
}


def _in_words(error: Any, address: str) -> ApiError:
    """An ApiError with the details of google.rpc: the field, the valid values, the time to retry."""
    code, said = error.code().name, error.details() or ""
    reason, fields, after = "", [], ""
    for detail in _details(error):
        match detail.DESCRIPTOR.name:
            case "ErrorInfo":
                reason = detail.reason
            case "BadRequest":
                fields = [f"{one.field}: {one.description}" for one in detail.field_violations]
            case "RetryInfo":
                after = f"; try again in {detail.retry_delay.ToTimedelta().total_seconds():g} s"
    if code == "UNAVAILABLE" and not reason:
        said = f"the memory API cannot be reached at {address}"
    elif not reason:
        said = _WORDS.get(code, said or code)
    if code == "UNAUTHENTICATED" and said:
        said = f"{said} (--token, --api-key or --as)" if reason else said
    return ApiError("; ".join(fields) + after if fields else said + after, code=code, reason=reason)


def _details(error: Any) -> Iterator[Any]:
    from google.rpc import error_details_pb2, status_pb2  # noqa: PLC0415

    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        for packed in status_pb2.Status.FromString(value).details:
            kind = getattr(error_details_pb2, packed.TypeName().removeprefix("google.rpc."), None)
            if kind is not None:
                detail = kind()
                packed.Unpack(detail)
                yield detail


# The options shared by all commands of the memory API: address and credentials.

_option = functools.partial(typer.Option, rich_help_panel="Connection")


def _connection(
    *,
    address: Annotated[
        str, _option(envvar="MEMORY_EXTPROC_API", help="address of the memory API: host:port or unix:/path")
    ] = USUAL,
    tls: Annotated[bool, _option("--tls", help="use TLS")] = False,
    tls_ca: Annotated[
        Path | None,
        _option(
            envvar="MEMORY_EXTPROC_API_CA", help="PEM file of the authorities that sign the server's certificate"
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, _option(envvar="MEMORY_EXTPROC_API_CERT", help="PEM file of your client certificate")
    ] = None,
    tls_key: Annotated[
        Path | None, _option(envvar="MEMORY_EXTPROC_API_KEY_FILE", help="PEM file of its private key")
    ] = None,
    token: Annotated[str, _option(envvar="MEMORY_EXTPROC_TOKEN", help="JWT that identifies you")] = "",
    api_key: Annotated[str, _option(envvar="MEMORY_EXTPROC_API_KEY", help="API key that identifies you")] = "",
    as_user: Annotated[
        str,
        _option(
            "--as",
            envvar="MEMORY_EXTPROC_AS",
            help="your user id, where the API trusts its own machine (auth trusted_proxy)",
        ),
    ] = "",
    as_tenant: Annotated[
        str, _option("--tenant", envvar="MEMORY_EXTPROC_TENANT", help="tenant of the user given with --as")
    ] = "",
    timeout: Annotated[float, _option(min=0.1, help="timeout of a call in seconds; streams have none")] = 30.0,
) -> Connection:
    return Connection(
        address=address,
        tls=tls,
        ca=tls_ca,
        cert=tls_cert,
        key=tls_key,
        token=token,
        api_key=api_key,
        as_user=as_user,
        as_tenant=as_tenant,
        timeout=timeout,
    )


Answer = tuple[Any, Callable[[Any], None]]  # the API's answer, and the function that shows it to people


def with_api(command: Callable[..., Answer | None]) -> Callable[..., None]:
    """Give *command* an `ApiClient` as first argument; typer sees the connection options at the end instead. Errors
    are printed; exit 2 if other arguments would help, else 1. An answer that *command* returns is shown, or with
    --json printed as it is; a command that returns none has an option of its own for that."""
    hints = get_type_hints(command, include_extras=True)
    own = list(inspect.signature(command).parameters.values())[1:]
    shared = list(inspect.signature(_connection).parameters.values())
    shared_hints = get_type_hints(_connection, include_extras=True)
    answers = hints["return"] is not type(None)
    names = {parameter.name for parameter in shared}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        connection = _connection(**{name: given.pop(name) for name in names})
        as_json = answers and given.pop("as_json")
        with faults_to_exit():
            try:
                with connect_api(connection) as api:
                    if (answer := command(api, **given)) is not None:
                        show_answer(*answer, as_json=as_json)
            except ApiError as error:
                if error.wrong_use:
                    typer.echo(str(error), err=True)
                    raise typer.Exit(2) from error
                raise

    typed = [one.replace(annotation=hints[one.name]) for one in own]
    if answers:
        typed.append(inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson))
    typed += [one.replace(annotation=shared_hints[one.name]) for one in shared]
    # Keyword-only throughout: an argument may then follow an argument with a default.
    keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in typed]
    run.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in keyword}
    del run.__wrapped__  # typer would look through it
    return run


UserOption = Annotated[
    str, typer.Option("--user", help="user whose memories are meant, for admins and auditors; by default yourself")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask for confirmation")]
