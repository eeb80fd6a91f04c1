"""Which headers pass to and from a server inside, and which never do."""

from __future__ import annotations

import pytest

from cellwall.model.errors import UsageError
from cellwall.server.core import passed_headers
from cellwall.server.core.settings import ServerSettings
from cellwall.server.port_proxy.headers import from_inside, port_token, query_for_inside, to_inside

PREFIX = "/sandboxes/abc/ports/80"
OURS = {b"Host", b"content-security-policy", b"x-content-type-options"}


def inward(*names: bytes, own: bool = False, more: tuple[str, ...] = ()) -> set[bytes]:
    raw = [(name, b"v") for name in names]
    passed = to_inside(raw, 80, PREFIX, has_its_own_authorization=own, more=more)
    return {name for name, _ in passed} - OURS


def outward(*names: bytes, more: tuple[str, ...] = ()) -> set[bytes]:
    passed = from_inside([(name, b"v") for name in names], 80, PREFIX, more)
    return {name for name, value in passed if value == b"v"}


BY_PROXIES = (
    b"cookie", b"cookie2", b"authorization", b"proxy-authorization", b"remote-user", b"x-user",
    b"x-remote-user", b"x-forwarded-user", b"x-forwarded-email", b"x-forwarded-access-token",
    b"x-auth-request-user", b"x-auth-request-email", b"x-auth-request-access-token",
    b"cf-access-jwt-assertion", b"cf-access-authenticated-user-email", b"cf-connecting-ip",
    b"x-amzn-oidc-data", b"x-amzn-oidc-identity", b"x-amzn-oidc-accesstoken",
    b"x-goog-iap-jwt-assertion", b"x-goog-authenticated-user-email", b"x-ms-client-principal",
    b"x-ms-token-aad-access-token", b"tailscale-user-login", b"x-authentik-username",
    b"x-pomerium-jwt-assertion", b"x-vouch-user", b"x-webauth-user", b"x-streamlit-user",
    b"ssl-client-cert", b"ssl-client-verify", b"x-ssl-client-s-dn", b"x-client-cert",
    b"x-forwarded-client-cert", b"x-real-ip", b"x-forwarded-for", b"forwarded", b"via",
    b"true-client-ip", b"x-access-token", b"x-id-token", b"x-api-key", b"x-cellwall-token",
)  # fmt: skip


@pytest.mark.parametrize("name", BY_PROXIES)
def test_what_a_browser_or_a_proxy_adds_does_not_go_in(name: bytes) -> None:
    assert inward(name, b"accept") == {b"accept"}


def test_authorization_goes_in_where_it_is_the_insides_own() -> None:
    assert inward(b"authorization", own=True) == {b"authorization"}
    assert inward(b"authorization", own=False) == set()


STEERING = (
    b"x-accel-redirect", b"x-accel-expires", b"x-accel-limit-rate", b"x-accel-buffering",
    b"x-accel-charset", b"x-accel-anything", b"x-sendfile", b"x-sendfile2", b"x-sendfile-type",
    b"x-lighttpd-send-file", b"x-lighttpd-send-tempfile", b"x-litespeed-location",
    b"x-litespeed-cache-control", b"x-reproxy-url", b"x-reproxy-file", b"surrogate-control",
    b"surrogate-key", b"edge-control", b"cdn-cache-control", b"x-varnish-ttl", b"fastly-restarts",
    b"x-cache-tags", b"x-forwarded-proto",
)  # fmt: skip
SETTING = (
    b"set-cookie", b"set-cookie2", b"clear-site-data", b"service-worker-allowed", b"alt-svc",
    b"strict-transport-security", b"public-key-pins", b"nel", b"report-to", b"reporting-endpoints",
    b"www-authenticate", b"proxy-authenticate", b"access-control-allow-origin",
    b"access-control-allow-credentials", b"access-control-expose-headers", b"x-request-id",
    b"x-execution-id", b"refresh", b"origin-agent-cluster", b"content-length", b"upgrade",
)  # fmt: skip


@pytest.mark.parametrize("name", [*STEERING, *SETTING])
def test_what_steers_a_proxy_or_a_browser_does_not_come_out(name: bytes) -> None:
    assert outward(name, b"etag") == {b"etag"}


NEEDED_INSIDE = {
    "Jupyter": (b"x-xsrftoken", b"range", b"if-none-match", b"x-requested-with", b"origin"),
    "Streamlit": (b"x-xsrftoken", b"content-type", b"content-disposition", b"user-agent"),
    "gradio": (b"x-gradio-user", b"accept", b"content-type", b"last-event-id"),
    "code-server": (b"accept-language", b"cache-control", b"pragma", b"sec-fetch-dest"),
    "vite": (b"accept", b"if-none-match", b"sec-fetch-dest", b"cache-control", b"origin"),
    "Django, Rails": (b"x-csrftoken", b"x-csrf-token", b"x-http-method-override"),
    "htmx, Turbo, Inertia": (b"hx-request", b"hx-target", b"turbo-frame", b"x-inertia-version"),
    "Next.js": (b"rsc", b"next-action", b"next-router-state-tree", b"x-nextjs-data"),
    "gRPC-web, Connect": (b"x-grpc-web", b"grpc-timeout", b"connect-protocol-version"),
    "uploads that go on": (b"tus-resumable", b"upload-offset", b"upload-length", b"content-range"),
    "its own": (b"x-app-name", b"x-request-id", b"idempotency-key"),
}
NEEDED_OUTSIDE = {
    "pages and caches": (b"content-type", b"content-encoding", b"etag", b"vary", b"cache-control",
                         b"last-modified", b"expires", b"date"),
    "downloads": (b"content-disposition", b"content-range", b"accept-ranges"),
    "interfaces": (b"allow", b"retry-after", b"link", b"x-total-count", b"x-ratelimit-remaining",
                   b"x-process-time", b"server-timing"),
    "vite": (b"sourcemap", b"x-sourcemap"),
    "frameworks": (b"hx-redirect", b"turbo-location", b"x-inertia-location", b"grpc-status"),
    "uploads that go on": (b"tus-version", b"upload-offset", b"upload-expires"),
    "its own": (b"x-app-name", b"content-security-policy"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDED_INSIDE)
def test_what_applications_ask_with_goes_in(name: str) -> None:
    assert inward(*NEEDED_INSIDE[name]) == set(NEEDED_INSIDE[name])


@pytest.mark.parametrize("name", NEEDED_OUTSIDE)
def test_what_applications_answer_with_comes_out(name: str) -> None:
    assert outward(*NEEDED_OUTSIDE[name]) == set(NEEDED_OUTSIDE[name])


def test_names_of_the_operators_pass_both_ways() -> None:
    assert inward(b"x-tenant") == outward(b"x-tenant") == set()
    assert inward(b"x-tenant", more=("x-tenant",)) == {b"x-tenant"}
    assert outward(b"x-tenant", more=("x-tenant",)) == {b"x-tenant"}


@pytest.mark.parametrize(
    "name", ["cookie", "x-accel-redirect", "x-forwarded-user", "authorization", "X-Tenant", "a b"]
)
def test_operator_cannot_let_pass_what_never_does(name: str) -> None:
    with pytest.raises(UsageError, match="port_headers"):
        ServerSettings(port_headers=(name,))
    assert ServerSettings(port_headers=("x-tenant",)).port_headers == ("x-tenant",)


@pytest.mark.parametrize("name", [b"cookie", b"x-accel-redirect", b"set-cookie", b"x-api-key"])
def test_what_never_passes_does_not_although_it_were_listed(name: bytes) -> None:
    """The second lock, behind the lists and the settings."""
    assert inward(name, more=(name.decode(),)) == outward(name, more=(name.decode(),)) == set()


def test_nothing_that_never_passes_is_on_a_list() -> None:
    listed = passed_headers.TO_INSIDE | passed_headers.FROM_INSIDE
    assert not [name for name in listed if passed_headers.is_never_passed(name)]


def test_what_connection_names_stays_behind() -> None:
    raw = [(b"connection", b"close, X-App-Hop"), (b"x-app-hop", b"1"), (b"x-app-b", b"2")]
    passed = to_inside(raw, 80, PREFIX, has_its_own_authorization=False)
    assert passed == [(b"Host", b"localhost:80"), (b"x-app-b", b"2")]
    assert (b"x-app-hop", b"1") not in from_inside(raw, 80, PREFIX)


def test_nothing_dangerous_comes_out() -> None:
    raw = [
        (b"set-cookie", b"a=b"), (b"access-control-allow-origin", b"*"), (b"x-app-a", b"a\x01b"),
        (b"connection", b"x-app-hop"), (b"x-app-hop", b"1"), (b"content-length", b"5"),
        (b"location", b"http://localhost:80/a"), (b"content-type", b"text/html"),
    ]  # fmt: skip
    headers = dict(from_inside(raw, 80, "/p"))
    assert headers.pop(b"content-security-policy").startswith(b"sandbox")
    assert headers == {
        b"location": b"/p/a", b"content-type": b"text/html", b"x-content-type-options": b"nosniff",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "left"),
    [
        (b"a=1&cellwall_token=t&b=%2F", b"a=1&b=%2F"),
        (b"a=%zz&&b", b"a=%zz&&b"),
        (b"%63ellwall_token=t&a=+%20", b"a=+%20"),
        (b"cellwall%5Ftoken=t", b""),
        (b"cellwall%5ftoken&x=cellwall_token", b"x=cellwall_token"),
        (b"", b""),
    ],
)
def test_our_token_is_taken_out_of_the_query_however_it_is_named(query: bytes, left: bytes) -> None:
    assert query_for_inside(query) == left


def test_token_that_opens_is_one_that_is_taken_out() -> None:
    for query in (b"a=1&cellwall_token=t", b"%63ellwall_token=t", b"cellwall%5ftoken=t&a"):
        assert port_token({}, query) == "t"
        assert b"t" not in query_for_inside(query).replace(b"a", b"")
    assert port_token({"x-cellwall-token": "h"}, b"cellwall_token=t") == "h"
    assert port_token({}, b"") is None


@pytest.mark.parametrize(
    ("referer", "seen"),
    [
        (f"https://x.example{PREFIX}/a?cellwall_token=t&b=1", b"http://localhost:80/a?b=1"),
        (f"https://x.example{PREFIX}/?%63ellwall_token=t#top", b"http://localhost:80/"),
        (f"https://x.example{PREFIX}1/a?cellwall_token=t", None),
        ("https://x.example/sandboxes/other/ports/80/?cellwall_token=t", None),
        ("https://elsewhere.example/private/place", None),
        ("https://x.example", None),
    ],
)
def test_page_that_asked_is_named_as_the_inside_knows_it(referer: str, seen: bytes | None) -> None:
    raw = [(b"referer", referer.encode())]
    passed = dict(to_inside(raw, 80, PREFIX, has_its_own_authorization=False))
    assert passed.get(b"referer") == seen


def test_white_space_around_a_value_is_not_passed_on() -> None:
    """HTTP allows it there; the parser of requests leaves it, the writer of requests refuses it."""
    raw = [(b"x-app-a", b" \tb c \t")]
    assert (b"x-app-a", b"b c") in to_inside(raw, 80, PREFIX, has_its_own_authorization=False)
