"""The kinds of value that the configuration is written in: durations, sizes, addresses, names, secrets."""

from __future__ import annotations

import ipaddress
import re
import types
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_DURATION = r"^([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)$"
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = r"^([0-9]+(?:\.[0-9]+)?)(B|KiB|MiB|GiB)$"


def parse_duration(value: Any) -> timedelta:
    """`150ms`, `60s`, `5m`, `2h`, `60d`. Raises ValueError for anything else, bare numbers too."""
    if isinstance(value, timedelta):
        return value
    match = re.fullmatch(_DURATION, value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("expected a duration such as 150ms, 60s, 5m, 2h or 60d")
    try:
        return float(match[1]) * _UNITS[match[2]]
    except OverflowError as error:
        raise ValueError("this duration is longer than any we can count") from error


def write_duration(value: timedelta) -> str:
    """The shortest way to write it: 90 s is `90s`, 120 s is `2m`."""
    if not value:
        return "0s"
    for unit in ("d", "h", "m", "s"):
        if value % _UNITS[unit] == timedelta():
            return f"{value // _UNITS[unit]}{unit}"
    milliseconds = value / _UNITS["ms"]
    return f"{milliseconds:.0f}ms" if milliseconds.is_integer() else f"{milliseconds:.3f}ms"


def parse_size(value: Any) -> int:
    """Bytes of `512B`, `8KiB`, `4MiB`, `1GiB`. Raises ValueError for anything else, bare numbers too."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        # an int comes from a default or a test; a YAML file's bare number is refused by `Written`
        return value
    match = re.fullmatch(_SIZE, value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("expected a size such as 512B, 8KiB, 4MiB or 1GiB")
    return round(float(match[1]) * _BYTES[match[2]])


def write_size(value: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        if value and value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{unit}"
    return f"{value}B"


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(write_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": _DURATION, "examples": ["150ms", "60s", "60d"]}),
]


def _some_time(value: timedelta) -> timedelta:
    if not value:
        raise ValueError("should be longer than no time at all")
    return value


Positive = Annotated[Duration, AfterValidator(_some_time)]


def _written_with_unit(value: Any) -> Any:
    if isinstance(value, int | float):
        raise ValueError("expected a size such as 512B, 8KiB, 4MiB or 1GiB")  # noqa: TRY004 - a fault, not a bug
    return value


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    BeforeValidator(_written_with_unit),
    PlainSerializer(write_size, return_type=str),
    WithJsonSchema({"type": "string", "pattern": _SIZE, "examples": ["8KiB", "4MiB"]}),
]
Share = Annotated[float, Field(ge=0, le=1)]
Auto = Literal["auto"]


def _header(value: str) -> str:
    lowered = value.strip().lower()
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9a-z-]+", lowered):  # RFC 9110, 5.6.2: token
        raise ValueError("expected the name of an HTTP header")
    return lowered


Header = Annotated[str, AfterValidator(_header)]
# Empty says: none is read.
OptionalHeader = Annotated[str, AfterValidator(lambda value: _header(value) if value else "")]


def split_address(value: str) -> tuple[str, int]:
    """(host, port) of `host:port` or `[v6]:port`. Raises ValueError."""
    host, colon, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdecimal() and 0 <= int(port) <= 65535):  # noqa: PLR2004
        raise ValueError("expected host:port, such as 127.0.0.1:50051")
    return host, int(port)


def _listening(value: str) -> str:
    if value.startswith("unix:"):
        path = value.removeprefix("unix:")
        if not path.startswith("/"):
            raise ValueError("expected unix:/absolute/path")
        # sockaddr_un holds 108 bytes with the closing zero
        if len(path.encode()) > 107:  # noqa: PLR2004
            raise ValueError("the path of a Unix socket has 107 bytes at most")
        return value
    split_address(value)
    return value


def _optional_socket(value: str) -> str:
    if value and not value.startswith("unix:"):
        raise ValueError("expected unix:/absolute/path, or nothing")
    return value and _listening(value)


Listening = Annotated[str, AfterValidator(_listening)]
OptionalSocket = Annotated[str, AfterValidator(_optional_socket)]


def on_loopback(address: str) -> bool:
    """Whether only this machine can reach *address*: a Unix socket, localhost, 127.0.0.0/8, ::1."""
    if address.startswith("unix:"):
        return True
    host, _ = split_address(address)
    return is_loopback(host)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("expected an http or https URL")
    if parts.username or parts.password:
        raise ValueError("a URL carries no user or password here: they would stand in plain sight")
    return value.rstrip("/")


OptionalUrl = Annotated[str, AfterValidator(lambda value: _url(value) if value else "")]


class Section(BaseModel):
    """A part of the configuration: frozen, and a key it does not know is a fault.

    A secret `x` may stand in a file instead, named by `x_file`; it is read once, without the white space at
    its end. The secret itself is best given in the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def complete(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        # A section whose keys are all commented out is there, and empty.
        given = {key: value for key, value in given.items() if value is not None or not cls._holds_section(key)}
        read: dict[str, SecretStr] = {}
        for name in cls.model_fields:
            path = given.get(f"{name}_file")
            if f"{name}_file" not in cls.model_fields or not path or not isinstance(path, str):
                continue
            if given.get(name):
                raise ValueError(f"{name} and {name}_file are both given: keep one")
            read[name] = SecretStr(_contents(f"{name}_file", path))
        return {**given, **read}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's, but without cached properties, which were computed from the old values."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(copied).model_fields.keys():
            del copied.__dict__[name]
        return copied

    @classmethod
    def _holds_section(cls, name: str) -> bool:
        field = cls.model_fields.get(name)
        kind = field.annotation if field is not None else None
        return isinstance(kind, type) and issubclass(kind, Section)


def _contents(name: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").rstrip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(f"{name} cannot be read: {path}: {reason}") from error
    if not text:
        raise ValueError(f"{name} is empty: {path}")
    return text


# Finding one's way through the configuration's types: what stands at a key, and whether it has parts.


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def fields_of(section: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """By the names they are written with."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def alternatives(kind: Any) -> Iterator[Any]:
    """The members of a union, or *kind* itself; without annotations."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from alternatives(get_args(kind)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(kind):
            yield from alternatives(member)
    else:
        yield kind


def has_parts(kind: Any) -> bool:
    """Whether its values are lists or mappings, which the environment gives as JSON."""
    return any(
        is_section(each) or get_origin(each) in (tuple, list, dict, frozenset) for each in alternatives(kind)
    )


def allows_none(kind: Any) -> bool:
    return any(each is type(None) for each in alternatives(kind))


def child(kind: Any, key: str | int) -> Any:
    """The type of what stands at *key* within *kind*; None when nothing can stand there."""
    for each in alternatives(kind):
        if is_section(each):
            field = fields_of(each).get(str(key))
            return field.annotation if field is not None else None
        if get_origin(each) in (tuple, list, frozenset) and isinstance(key, int):
            return get_args(each)[0]
        if get_origin(each) is dict:
            return get_args(each)[1]
    return None
