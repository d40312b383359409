"""A server's TLS certificate as libpq judges it: names, validity, issuer; pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

_LONGEST_CHAIN = 8


@dataclass(frozen=True, slots=True)
class Certificate:
    """A server's certificate: the names and addresses that it is for, and its time."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    common_name: str | None
    begins: datetime
    ends: datetime
    trusted: bool | None
    """Whether one of the known authorities has issued it; None where none is known."""

    @property
    def shown(self) -> str:
        """The names for a message."""
        return ", ".join([*self.names, *self.addresses] or [self.common_name or "no name"])

    def is_for(self, host: str) -> bool:
        """Return whether `sslmode=verify-full` accepts it from a server at this name or address.

        As in libpq, the common name counts only where the certificate has no name of that kind.
        """
        try:
            address = str(ipaddress.ip_address(host))
        except ValueError:
            alone = not self.names
            names = self.names
        else:
            if address in self.addresses:
                return True
            alone = not self.addresses
            names = tuple(name for name in self.names if not name.startswith("*"))
        if alone and self.common_name is not None:
            names = (*names, self.common_name)
        return any(_matches(name, host) for name in names)


def read(pem: bytes, authorities: bytes | None = None) -> Certificate:
    """Read the first certificate of a file, which is the server's own.

    The rest of the file may lead to one of the `authorities`. Raises ValueError.
    """
    own, *between = x509.load_pem_x509_certificates(pem)
    try:
        alternatives = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        alternatives = x509.SubjectAlternativeName([])
    common = own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    roots = x509.load_pem_x509_certificates(authorities) if authorities else []
    return Certificate(
        names=tuple(alternatives.get_values_for_type(x509.DNSName)),
        addresses=tuple(map(str, alternatives.get_values_for_type(x509.IPAddress))),
        common_name=str(common[0].value) if common else None,
        begins=own.not_valid_before_utc,
        ends=own.not_valid_after_utc,
        trusted=_leads_to(own, between, roots) if roots else None,
    )


def _leads_to(
    own: x509.Certificate,
    between: Sequence[x509.Certificate],
    roots: Sequence[x509.Certificate],
) -> bool:
    """Return whether a chain of issuers leads from a certificate to one of the roots."""
    current = own
    for _ in range(_LONGEST_CHAIN):
        if current in roots or any(_issued(current, root) for root in roots):
            return True
        above = next((one for one in between if one != current and _issued(current, one)), None)
        if above is None:
            return False
        current = above
    return False


def _issued(one: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        one.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _matches(pattern: str, host: str) -> bool:
    """Compare names as libpq does: a star stands for the first label, whole.

    >>> _matches("DB1.example.com", "db1.example.com"), _matches("*.example.com", "a.example.com")
    (True, True)
    >>> _matches("*.example.com", "a.b.example.com"), _matches("*.example.com", "example.com")
    (False, False)
    """
    pattern, host = pattern.lower(), host.lower()
    label, _, rest = host.partition(".")
    return pattern == host or (pattern.startswith("*.") and bool(label) and pattern[2:] == rest)
