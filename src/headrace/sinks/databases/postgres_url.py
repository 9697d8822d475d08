"""Parsing of PostgreSQL connection URLs by libpq's rules.

libpq does not follow the general rules for URLs: `#` has no meaning, a login ends at the first `@` unless a `/`
precedes it, and a URL may name several hosts or none. libpq receives the URL unchanged. It is parsed here only to add
parameters and to decide which parts may be shown. Parts that could contain a password are hidden:

    postgresql://[user[:password]@][host[:port][,...]][/database][?name=value[&...]]

An `@` after the login is rejected although libpq accepts it, because such a URL nearly always contains an unescaped
password: with `postgresql://ann:123/secret@host/shop` libpq would connect to host `ann`, port 123.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from urllib.parse import unquote, urlencode

from headrace.errors import QueryError

SECRET = {"password", "sslpassword", "passfile", "oauth_client_secret", "scram_client_key", "scram_server_key"}
SHOWN_PARAMETERS = {
    "user": ":/?#&=",
    "host": "?#&=",
    "port": "",
    "dbname": ":/?#&=",
}  # part -> characters that prevent it from being shown
HARMLESS_PARAMETERS = {  # parameters of libpq 18 without secrets; unknown parameters are treated as secret
    *("application_name", "channel_binding", "client_encoding", "connect_timeout", "fallback_application_name"),
    *("gssdelegation", "gssencmode", "gsslib", "hostaddr", "keepalives", "keepalives_count", "keepalives_idle"),
    *("keepalives_interval", "krbsrvname", "load_balance_hosts", "max_protocol_version", "min_protocol_version"),
    *("oauth_client_id", "oauth_issuer", "oauth_scope", "options", "replication", "require_auth", "requirepeer"),
    *("requiressl", "service", "ssl", "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert", "sslcertmode"),
    *("sslcompression", "sslcrl", "sslcrldir", "sslkey", "sslkeylogfile", "sslmode", "sslnegotiation", "sslrootcert"),
    *("sslsni", "target_session_attrs", "tcp_user_timeout"),
}
_BROKEN = re.compile(r"%(?![0-9A-Fa-f]{2})|%00|[\s\x00-\x1f]")
_SCHEME = re.compile(r"postgres(?:ql)?://")
_LOGIN = re.compile(r"([^@/]*)@")  # ends at the first @, unless a / precedes it
_HOST = re.compile(r"(?:\[([^]]+)\]|([^:/?,\[][^:/?,]*|))(?::([^/?,]*))?(,|(?=[/?])|\Z)")


@dataclass(frozen=True)
class PostgresURL:
    """A URL and its unmodified parts."""

    url: str
    parts: dict[str, str]  # by libpq's parameter names
    has_query: bool

    def with_parameters(self, more: dict[str, str]) -> str:
        """Return the URL with the parameters that it does not contain yet."""
        added = urlencode({name: value for name, value in more.items() if name not in self.parts})
        glue = "?" if not self.has_query else "" if self.url[-1] in "?&" else "&"
        return f"{self.url}{glue}{added}"

    @property
    def shown(self) -> str:
        """Return the URL with user, hosts, ports and database only."""
        user, host, port, database = (self._shown(name) for name in SHOWN_PARAMETERS)
        hosts, ports = host.split(","), port.split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        named = [f"[{name}]" if ":" in name and "/" not in name else name for name in hosts]
        where = ",".join(f"{name}:{port}" if port else name for name, port in zip_longest(named, ports, fillvalue=""))
        return f"postgresql://{f'{user}@' if user else ''}{where}{f'/{database}' if database else ''}"

    def _shown(self, name: str) -> str:
        part = self.parts.get(name, "")
        return "***" if self._is_secret(name, part) else part

    def _is_secret(self, name: str, part: str) -> bool:
        if name in SHOWN_PARAMETERS:
            return any(character in SHOWN_PARAMETERS[name] for character in part)
        return name not in HARMLESS_PARAMETERS

    @property
    def secrets(self) -> list[str]:
        """Return the texts to hide in messages: passwords, and all parts that are not known to be harmless."""
        found = _each(part for name, part in self.parts.items() if self._is_secret(name, part))
        return found + [
            name for name in self.parts if name not in HARMLESS_PARAMETERS | SECRET | SHOWN_PARAMETERS.keys()
        ]

    @property
    def everything(self) -> list[str]:
        """Return the texts to hide in messages if the whole URL is secret."""
        return [*self.secrets, *_each(self.parts.values())]


def _each(parts: Iterable[str]) -> list[str]:
    """Return the parts and the items of their lists, because libpq names a single host of several."""
    return [each for part in parts for each in (part, *part.split(","))]


def parse_url(url: str) -> PostgresURL:
    """Parse a URL. Errors quote nothing of it, because any part may belong to a password."""
    if _BROKEN.search(url):
        raise _refused(
            "it contains spaces, line breaks, or a % that is not followed by two hexadecimal digits; write % as %25"
        )
    rest = url[_SCHEME.match(url).end() :]  # type: ignore[union-attr]
    login = _LOGIN.match(rest)
    user, _, password = login[1].partition(":") if login else ("", "", "")
    rest = rest[login.end() :] if login else rest
    if "@" in rest:
        raise _refused(
            "an @ follows the login; write / and @ as %2F and %40 in users, passwords, databases and parameters"
        )
    hosts, ports, rest = _hosts(rest)
    database, mark, query = rest.removeprefix("/").partition("?")
    parts = {"user": user, "password": password, "host": hosts, "port": ports, "dbname": database}
    parts = {name: part for name, part in parts.items() if part} | _parameters(query)
    if not all(re.fullmatch(r"\d{0,5}", port) for port in parts.get("port", "").split(",")):
        raise _refused("a port is not a number; write / as %2F in a user or a password")
    return PostgresURL(url, parts, bool(mark))


def _hosts(rest: str) -> tuple[str, str, str]:
    """Return hosts and ports, each joined by commas, and the rest of the URL."""
    hosts, ports, at = [], [], 0
    while True:
        found = _HOST.match(rest, at)
        if found is None:
            raise _refused("an IPv6 address has no ], or is followed by something other than a port")
        hosts.append(found[1] or found[2] or "")
        ports.append(found[3] or "")
        at = found.end()
        if found[4] != ",":
            return ",".join(hosts), ",".join(ports), rest[at:]


def _parameters(query: str) -> dict[str, str]:
    found = {}
    for each in query.removesuffix("&").split("&") if query else ():
        if each.count("=") != 1:
            raise _refused("a parameter is not name=value; write & and = in a value as %26 and %3D")
        name, _, value = each.partition("=")
        found[unquote(name)] = value
    return found


def _refused(why: str) -> QueryError:
    msg = f"the URL of the database cannot be read: {why}. Example of a URL: postgresql://user:password@host:5432/name"
    return QueryError(msg)
