"""The lists of headers that pass between a client and a server inside a sandbox; data only.

They are applied by `port_proxy.headers`. The lists allow known headers instead of refusing bad
ones: each proxy and each single sign-on in front has headers of its own that identify users or
steer the proxy, and no list of those is complete. The invariant: no name of `NEVER` is on a list,
nor can an operator put it there.
"""

from __future__ import annotations

from collections.abc import Iterable

_BOTH = frozenset(
    # describe a body
    {b"content-type", b"content-encoding", b"content-language", b"content-disposition",
     b"content-range", b"content-digest", b"repr-digest", b"digest", b"content-md5",
     # caches
     b"cache-control", b"pragma", b"etag", b"last-modified", b"date",
     # resumable uploads (tus), and pages of lists
     b"location", b"link", b"x-total-count"}
)  # fmt: skip
TO_INSIDE = _BOTH - {b"location", b"etag"} | frozenset(
    # content negotiation and conditions
    {b"accept", b"accept-charset", b"accept-encoding", b"accept-language", b"accept-datetime",
     b"range", b"if-range", b"if-match", b"if-none-match", b"if-modified-since",
     b"if-unmodified-since", b"last-event-id", b"prefer", b"priority", b"save-data", b"user-agent",
     # origin of a page's request (`referer` is rewritten)
     b"origin", b"referer", b"x-requested-with", b"upgrade-insecure-requests", b"dnt", b"sec-gpc",
     b"access-control-request-method", b"access-control-request-headers",
     # against forged requests: Jupyter and Tornado, Django, Rails, Angular
     b"x-xsrftoken", b"x-xsrf-token", b"x-csrftoken", b"x-csrf-token",
     # identify the request
     b"x-request-id", b"x-correlation-id", b"idempotency-key", b"x-http-method-override",
     # remote procedure calls over HTTP, Next.js, Livewire
     b"x-grpc-web", b"x-user-agent", b"next-action", b"next-url", b"rsc", b"x-livewire"}
)  # fmt: skip
FROM_INSIDE = _BOTH | frozenset(
    {b"accept-ranges", b"accept-patch", b"accept-post", b"allow", b"age", b"expires", b"vary",
     b"retry-after", b"content-location", b"server-timing", b"warning", b"x-robots-tag",
     # restrictions that a page puts on itself
     b"content-security-policy", b"referrer-policy", b"permissions-policy", b"x-frame-options",
     b"cross-origin-opener-policy", b"cross-origin-embedder-policy",
     b"cross-origin-resource-policy",
     # tools and frameworks
     b"sourcemap", b"x-sourcemap", b"x-process-time", b"x-response-time", b"x-runtime",
     b"x-correlation-id", b"deprecation", b"sunset"}
)  # fmt: skip
_FAMILIES = (
    b"x-app-",  # an application's own headers, which it may name so
    b"hx-", b"turbo-", b"x-inertia", b"x-gradio-", b"x-jupyter-", b"x-dash-", b"x-nextjs-",
    b"next-router-", b"grpc-", b"connect-", b"tus-", b"upload-", b"x-ratelimit-", b"ratelimit-",
)  # fmt: skip
"""Prefixes of names that one framework or protocol reserves, in both directions."""
_ASKED_FAMILIES = (*_FAMILIES, b"sec-fetch-", b"sec-ch-")
"""The same, and headers in which a browser describes itself."""
NEVER = frozenset(
    # for this connection only, or framing, which each side makes anew
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te",
     b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection", b"expect", b"host",
     b"content-length",
     # state that a browser keeps for this host, and headers that would change it
     b"cookie", b"cookie2", b"set-cookie", b"set-cookie2", b"clear-site-data", b"authorization",
     b"www-authenticate", b"service-worker-allowed", b"alt-svc", b"strict-transport-security",
     b"public-key-pins", b"nel", b"report-to", b"reporting-endpoints", b"origin-agent-cluster",
     # cellwall's own
     b"x-api-key", b"x-cellwall-token", b"x-execution-id", b"x-content-type-options",
     b"x-access-token", b"e2b-traffic-access-token", b"e2b-sandbox-id", b"e2b-sandbox-port",
     b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-prefix",
     # headers that steer the proxy in front
     b"x-sendfile", b"x-sendfile2", b"x-lighttpd-send-file", b"surrogate-control",
     b"surrogate-capability", b"surrogate-key"}
)  # fmt: skip
_NEVER_FAMILIES = (
    b"access-control-allow-", b"access-control-expose-", b"access-control-max-", b"sec-websocket-",
    b"x-accel-", b"x-sendfile", b"x-lighttpd-", b"x-litespeed-", b"x-reproxy-", b"x-forwarded-",
    b"proxy-",
)  # fmt: skip


def goes_in(name: bytes, more: Iterable[str] = ()) -> bool:
    """Report whether a request's header passes; `name` in lower case, `more` from the operator."""
    if name in TO_INSIDE or name.startswith(_ASKED_FAMILIES):
        return True
    return name.decode("latin-1") in more


def comes_out(name: bytes, more: Iterable[str] = ()) -> bool:
    """Report whether an answer's header passes; arguments as for `goes_in`."""
    if name in FROM_INSIDE or name.startswith(_FAMILIES):
        return True
    return name.decode("latin-1") in more


def is_never_passed(name: bytes) -> bool:
    """Report whether a header is excluded from every list; `name` in lower case."""
    return name in NEVER or name.startswith(_NEVER_FAMILIES)
