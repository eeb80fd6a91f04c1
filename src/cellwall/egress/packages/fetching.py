"""Requests to registries: HTTP/1.1, redirects followed, credentials to their own origin only.

`pages` and `downloads` decide what to ask and what the answer means. Not `httpx`, whose public
interface has no place between the look-up of a name and the connection; this is the pool below it.
The invariant: `Trouble` says what is wrong without a URL, a host or a header in it.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit, urlunsplit

import httpcore

from cellwall.egress.addresses import AddressPolicy
from cellwall.egress.packages.dialling import CheckedBackend, NotDialled
from cellwall.egress.packages.listings.listing import file_url
from cellwall.egress.packages.upstream import Upstream, authorization_of, origin_of
from cellwall.egress.posting import Resolve, SystemResolver

_MOST_REDIRECTS = 5
_MOST_CONNECTIONS = 64
_KEPT_S = 20.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Trouble(Exception):
    """A registry gave no answer that can be used; the text says why, for the client's screen."""

    def __init__(self, why: str, *, may_pass: bool = False) -> None:
        """`may_pass`: trying again could help."""
        super().__init__(why)
        self.may_pass = may_pass


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that one step of a request may take."""

    connect_s: float = 3.0
    silent_s: float = 10.0
    """Between two pieces of an answer."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The head of an answer, and its body as it comes."""

    status: int
    url: str
    """Where it came from, after redirects, without credentials."""
    headers: Mapping[str, str]
    """By name in lower case."""
    body: AsyncIterator[bytes]

    @property
    def length(self) -> int | None:
        """Bytes of the body, if it says so."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


class Fetcher:
    """Fetches from the registries of one broker, over a pool of kept connections."""

    def __init__(
        self,
        upstreams: Iterable[Upstream],
        *,
        listed: Iterable[str] = (),
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        times: Times | None = None,
    ) -> None:
        """`listed` are networks that pages and redirects may name beside public ones.

        `tls`: None trusts this machine's authorities, which takes 50 ms to read.
        """
        self._system = SystemResolver()
        self._times = times or Times()
        configured = [upstream.origin[1:] for upstream in upstreams]
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or ssl.create_default_context(),
            max_connections=_MOST_CONNECTIONS,
            keepalive_expiry=_KEPT_S,
            http1=True,
            http2=False,
            network_backend=CheckedBackend(
                AddressPolicy(listed), configured, resolve or self._system
            ),
        )

    @asynccontextmanager
    async def get(
        self, url: str, upstream: Upstream, headers: Mapping[str, str]
    ) -> AsyncIterator[Fetched]:
        """Yield the answer for a URL that this upstream has or names; `Trouble` if there is none.

        It is `Trouble`, too, when the body ends too early or does not go on.
        """
        try:
            for _ in range(_MOST_REDIRECTS + 1):
                async with self._once(url, upstream, headers) as fetched:
                    if fetched.status not in _REDIRECTS:
                        yield fetched
                        return
                    url = _redirected(fetched)
        except NotDialled:
            why = "it leads to an address that is not public, and not listed by the operator"
            raise Trouble(why) from None
        except httpcore.ConnectError as error:
            raise Trouble("it cannot be connected to", may_pass=True) from error
        except httpcore.TimeoutException as error:
            raise Trouble("it does not answer in time", may_pass=True) from error
        except (httpcore.LocalProtocolError, httpcore.UnsupportedProtocol) as error:
            raise Trouble("it names a URL that is none") from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError) as error:
            raise Trouble("its answer broke off", may_pass=True) from error
        raise Trouble("it redirects in circles")

    @asynccontextmanager
    async def _once(
        self, url: str, upstream: Upstream, headers: Mapping[str, str]
    ) -> AsyncIterator[Fetched]:
        bare = _without_credentials(url)
        sent = {"Accept-Encoding": "identity", "User-Agent": "cellwall-packages", **headers}
        # SECURITY: a redirect or a page may lead elsewhere; the operator's credentials do not.
        own = upstream.authorization if origin_of(bare) == upstream.origin else None
        authorization = authorization_of(url) or own
        if authorization is not None:
            sent["Authorization"] = authorization
        times, silent_s = self._times, self._times.silent_s
        timeout = {"connect": times.connect_s, "read": silent_s, "write": silent_s}
        async with self._pool.stream(
            "GET",
            bare,
            headers=list(sent.items()),
            extensions={"timeout": {**timeout, "pool": silent_s}},
        ) as answer:
            yield Fetched(
                answer.status,
                bare,
                {
                    name.decode("latin-1").lower(): value.decode("latin-1")
                    for name, value in answer.headers
                },
                answer.aiter_stream(),
            )

    async def aclose(self) -> None:
        """Close every connection."""
        self._system.close()
        await self._pool.aclose()


def _redirected(fetched: Fetched) -> str:
    location = file_url(fetched.url, fetched.headers.get("location"))
    if location is None:
        raise Trouble("it redirects to what is no URL over http or https")
    if origin_of(fetched.url)[0] == "https" and origin_of(location)[0] != "https":
        raise Trouble("it redirects from https to http")
    return location


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def joined(upstream: Upstream, path: str) -> str:
    """Return the URL of a path below an upstream's."""
    return urljoin(upstream.url, path)
