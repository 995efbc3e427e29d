"""The address of Redis or Valkey: one server, a cluster, or the master that Sentinel names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote, urlsplit

_FORMS = (
    "redis://host:6379/0, redis+cluster://host:6379,host:6379, redis+sentinel://host:26379,host:26379/master/0,"
    " the same with rediss for TLS, or unix:///path"
)
_KINDS = {"", "cluster", "sentinel"}


class Topology(StrEnum):
    SERVER = "server"
    CLUSTER = "cluster"
    SENTINEL = "sentinel"


@dataclass(frozen=True, slots=True)
class RedisAddress:
    topology: Topology
    options: str  # a URL of the first node as redis-py reads it: TLS, database and query; without user and master
    nodes: tuple[tuple[str, int], ...] = ()  # of a cluster, or the Sentinels
    user: str = ""
    master: str = ""  # the name under which Sentinel knows the master


def parse_redis_url(url: str) -> RedisAddress:
    """ValueError, with the accepted forms, for any other URL. The message repeats no part of the URL."""
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    if (
        scheme not in {"redis", "rediss", "unix"}
        or kind not in {"", "cluster", "sentinel"}
        or (kind and scheme == "unix")
    ):
        raise ValueError(f"expected {_FORMS}; empty: SQLite under data_dir")
    given, _, hosts = parts.netloc.rpartition("@")
    user, _, password = given.partition(":")
    if password:
        raise ValueError("a URL carries no password here, it would stand in plain sight: coordination.password")
    if not (parts.path if scheme == "unix" else hosts):
        raise ValueError(f"names no server; expected {_FORMS}")
    topology = Topology(kind or "server")
    if topology is Topology.SERVER:
        if "," in hosts:
            raise ValueError("several servers need redis+cluster:// or redis+sentinel://")
        return RedisAddress(topology, parts._replace(netloc=hosts).geturl(), user=unquote(user))
    nodes = tuple(_parse_node(node, 26379 if topology is Topology.SENTINEL else 6379) for node in hosts.split(","))
    master, _, database = parts.path.strip("/").partition("/")
    if topology is Topology.CLUSTER:
        master, database = "", "/".join(filter(None, (master, database)))
        if database not in {"", "0"}:
            raise ValueError("a Redis Cluster has only database 0")
    elif not master:
        raise ValueError("names no master; expected redis+sentinel://host:26379,host:26379/master")
    elif database and not database.isdecimal():
        raise ValueError("the database after the master's name must be a number")
    first = parts._replace(scheme=scheme, netloc=hosts.split(",")[0], path=f"/{database}")
    return RedisAddress(topology, first.geturl(), nodes, unquote(user), unquote(master))


def _parse_node(node: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{node}")
    if not parts.hostname:
        raise ValueError("a server without a name stands among the hosts; expected host:port,host:port")
    try:
        return parts.hostname, parts.port or port
    except ValueError:
        raise ValueError("a port is no number up to 65535; expected host:port,host:port") from None
