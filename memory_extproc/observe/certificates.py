"""When the certificates in use end, as a metric."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

from cryptography import x509

from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics

log = logger(__name__)


class CertificateExpiry:
    """Looks at *cert* (PEM, the leaf with what signed it) whenever the metrics are asked for, and reads it again
    when it has changed: as the server does at a handshake."""

    def __init__(self, cert: Path) -> None:
        self._cert = cert
        self._seen: tuple[int, int] | None = None
        self._ends = math.nan

    def ends(self) -> float:
        """The end of whatever in the file ends first, in seconds since 1970. While a changed file cannot be read,
        that of the one before, which the server uses too; NaN when none ever could."""
        try:
            stat = self._cert.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp != self._seen:
                chain = x509.load_pem_x509_certificates(self._cert.read_bytes())
                self._ends = min(each.not_valid_after_utc.timestamp() for each in chain)
                self._seen = stamp
        except (OSError, ValueError) as error:
            log.warning("tls.unreadable", kind=type(error).__name__)
        return self._ends


def watch_certificate(metrics: Metrics, port: str, cert: Path) -> None:
    """*port*: whose it is, `ext_proc` or `api`."""
    expiry = CertificateExpiry(cert)
    metrics.certificate_expiry.labels(port).set_function(partial(CertificateExpiry.ends, expiry))
