"""Which client certificates may open a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

# gRPC core's names for what a verified client certificate says (grpc_security_constants.h).
NAMES = ("x509_subject_alternative_name", "x509_common_name")


class AllowedPeers:
    def __init__(self, allowed: Iterable[str]) -> None:
        """*allowed*: names or globs, compared with the certificate's alternative names, and with its common
        name where it has none of those (RFC 6125, 6.4.4)."""
        self._allowed = tuple(allowed)

    def admit(self, auth: Mapping[str, Iterable[bytes]]) -> bool:
        """Whether the peer whose *auth* context this is showed a certificate with an allowed name."""
        for property_name in NAMES:
            names = [name.decode("utf-8", "replace") for name in auth.get(property_name, ())]
            if names:
                return any(fnmatchcase(name, allowed) for name in names for allowed in self._allowed)
        return False
