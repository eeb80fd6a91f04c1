"""The server's pure parts: tokens, ranges, paths, limits, errors, admission, keys."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.apps.settings_loader import load
from cellwall.engine.scheduling.quotas import Quotas, Tenants
from cellwall.model import errors as model_errors
from cellwall.model.errors import CapacityError, CellwallError, NotFound, UsageError
from cellwall.model.limits import Limits
from cellwall.server.auth.keys import Failures, Principal
from cellwall.server.auth.tokens import Tokens, node_of_token
from cellwall.server.core.errors import HttpError, envelope, headers_of, status_of
from cellwall.server.core.settings import ServerSettings
from cellwall.server.http.endpoint import parsed
from cellwall.server.http.guards import allowed_hosts, answers_to, read_headers
from cellwall.server.schemas import decode, responses
from cellwall.server.schemas.paths import check_name
from cellwall.server.schemas.requests import ExecuteBody, SandboxBody
from cellwall.server.streaming.downloads import _span, attachment

KEY = b"k" * 32

# -- tokens --------------------------------------------------------------------------------------


SIGNER = Principal("alice", "k1", "run")


def tokens_of(key: bytes = KEY, *accepted: str) -> Tokens:
    return Tokens(key, (accepted or ("k1",)).__contains__)


def test_token_opens_what_it_was_signed_for_and_nothing_else() -> None:
    ours = tokens_of()
    token, _ = ours.sign(SIGNER, "file", {"path": "a", "owner": "bob", "key": "k2"}, 60)
    opened = ours.opened("file", token)
    assert (opened["path"], opened["owner"], opened["key"]) == ("a", "alice", "k1")
    expired, _ = ours.sign(SIGNER, "file", {}, -1)
    for theirs, kind, text in (
        (tokens_of(b"x" * 32), "file", token), (ours, "port", token), (ours, "file", expired),
        (ours, "file", token[:-1]), (ours, "file", ""), (ours, "file", "A" * 20_000),
    ):  # fmt: skip
        with pytest.raises(NotFound):
            theirs.opened(kind, text)


def test_token_ends_with_the_key_that_signed_it() -> None:
    token, _ = tokens_of().sign(SIGNER, "port", {}, 60)
    assert tokens_of(KEY, "k1", "k2").opened("port", token)
    with pytest.raises(NotFound):
        tokens_of(KEY, "k2").opened("port", token)


@given(st.binary(max_size=200))
def test_no_other_bytes_are_a_token(raw: bytes) -> None:
    with pytest.raises(NotFound):
        tokens_of().opened("file", raw.decode("latin-1"))


def test_token_of_a_node_begins_with_its_name_which_is_signed() -> None:
    def of(node: str) -> Tokens:
        return Tokens(KEY, {"k1"}.__contains__, node)

    token, _ = of("a7c2").sign(SIGNER, "file", {"path": "a"}, 60)
    plain, _ = of("").sign(SIGNER, "file", {"path": "a"}, 60)
    assert (token[:5], node_of_token(token), node_of_token(plain)) == ("a7c2.", "a7c2", "")
    assert of("a7c2").opened("file", token)["path"] == of("").opened("file", plain)["path"] == "a"
    for theirs, text in (
        (of("b7c2"), token), (of("b7c2"), "b7c2" + token[4:]), (of(""), token),
        (of(""), token[5:]), (of("a7c2"), token[5:]), (of("a7c2"), "a7c2." + token),
        (of("a7c2"), plain), (of("a7c2"), "a7c2." + plain),
        (of("a7c2"), token[:9] + "." + token[9:]),
    ):  # fmt: skip
        with pytest.raises(NotFound):
            theirs.opened("file", text)


@pytest.mark.parametrize(
    "text", ["", ".", "a7c2", "auto.x", "A7C2.x", "a7c.x", "a7c2x.y", "/a7c2."]
)
def test_what_does_not_begin_with_a_name_and_a_dot_names_no_node(text: str) -> None:
    assert node_of_token(text) == ""


# -- ranges and names ----------------------------------------------------------------------------


@given(size=st.integers(1, 10**6), first=st.integers(0, 10**6), last=st.integers(0, 10**6))
def test_range_stays_inside_the_file(size: int, first: int, last: int) -> None:
    wanted = f"bytes={first}-{last}"
    if first >= size or last < first:
        with pytest.raises(HttpError) as refused:
            _span(wanted, size)
        assert refused.value.status == 416
    else:
        span = _span(wanted, size)
        assert span is not None
        assert 0 <= span[0] < span[1] <= size


@given(st.text(max_size=300))
def test_attachment_headers_are_plain_ascii(name: str) -> None:
    for value in attachment(name).values():
        assert value.isascii()
        assert value.isprintable()


@given(st.text(max_size=50))
def test_a_name_that_passes_has_nothing_odd(name: str) -> None:
    try:
        checked = check_name(name)
    except UsageError:
        return
    assert ".." not in checked.split("/")
    assert "\\" not in checked
    assert "\0" not in checked
    assert check_name(checked) == checked


# -- requests ------------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(["memory_mb", "processes"]), st.integers(16, 10**15)))
def test_limits_never_pass_the_ceiling(wanted: dict[str, int]) -> None:
    most = Limits(memory_mb=1024, processes=200)
    body = parsed(ExecuteBody, json.dumps({"code": "1", "limits": wanted}).encode())
    limits, clipped = decode.limits(body, Limits(), most)
    for name, value in wanted.items():
        assert getattr(limits, name) == min(value, getattr(most, name))
        assert (name in clipped) == (value > getattr(most, name))


@given(st.dictionaries(st.sampled_from(["memory_mb", "processes"]), st.integers(16, 4096)))
def test_limits_of_a_compile_never_pass_the_ceiling_either(wanted: dict[str, int]) -> None:
    most = Limits(memory_mb=1024, processes=200)
    own = Limits(memory_mb=2048)
    body = parsed(ExecuteBody, json.dumps({"code": "1", "compile_limits": wanted}).encode())
    limits = decode.compile_limits(body, own, most)
    for name in ("memory_mb", "processes"):
        value = wanted.get(name, getattr(own, name))
        assert getattr(limits, name) == min(value, getattr(most, name))


@pytest.mark.parametrize(
    ("text", "mebibytes"), [("256m", 256), ("1g", 1024), ("65536k", 64), ("134217728", 128)]
)
def test_older_names_are_understood(text: str, mebibytes: int) -> None:
    body = parsed(ExecuteBody, json.dumps({"code": "1", "max_memory": text}).encode())
    assert decode.limits(body, Limits(), ServerSettings().most)[0].memory_mb == mebibytes
    body = parsed(ExecuteBody, b'{"code":"1","lang":"bash","mode":"auto"}')
    assert (decode.language(body), decode.runtime(body)) == ("bash", None)


def test_sandbox_lives_are_limits() -> None:
    body = parsed(SandboxBody, b'{"idle_s": 5, "life_s": 7}')
    limits, clipped = decode.limits(body, Limits(), ServerSettings().most)
    assert (limits.idle_s, limits.life_s, clipped) == (5, 7, {})


# -- errors --------------------------------------------------------------------------------------


_ONLY_THE_CLIENT_S = (model_errors.AccessDenied, model_errors.ServerUnreachable)


def _every_error() -> list[CellwallError]:
    made: list[CellwallError] = []
    for _, kind in inspect.getmembers(model_errors, inspect.isclass):
        if not issubclass(kind, CellwallError) or kind in _ONLY_THE_CLIENT_S:
            continue
        names = inspect.signature(kind).parameters
        extra: dict[str, Any] = {"remedy": "r"}
        if "retry_after_s" in names:
            extra["retry_after_s"] = 2.5
        if "reason" in names:
            extra["reason"] = "not_found"
        words = ("thing", "m") if {"feature", "quota"} & set(names) else ("m",)
        made.append(kind(*words, **extra))
    return made


@pytest.mark.parametrize("error", _every_error(), ids=lambda e: type(e).__name__)
def test_every_error_has_the_one_shape(error: CellwallError) -> None:
    body = envelope(error, "id")
    assert set(body) == {"error"}
    assert {"code", "message", "remedy", "request_id"} <= set(body["error"])
    responses.Error.model_validate(body)
    assert 400 <= status_of(error) < 600
    if type(error) is not CellwallError and status_of(error) == 500:
        assert error.code == "sandbox_broken"
    if isinstance(error, (CapacityError, model_errors.NodeUnreachable)):
        assert headers_of(error) == {"retry-after": "3"}


def test_place_in_the_queue_is_in_the_shape_too() -> None:
    error = CapacityError("m", retry_after_s=1)
    error.position = 3
    assert responses.Error.model_validate(envelope(error, "id")).error.position == 3


def test_unexpected_errors_keep_their_words() -> None:
    body = envelope(RuntimeError("/root/secret"), "id")
    assert "secret" not in str(body)
    assert body["error"]["code"] == "internal"
    broken = envelope(model_errors.SandboxBroken("mount /var/lib/x: EPERM"), "id")
    assert "/var/lib" not in str(broken)
    host = model_errors.HostUnsupported("f", "no /sys/fs/cgroup/memory here", remedy="r")
    assert "/sys" not in envelope(host, "id")["error"]["message"]


# -- guards, keys --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "is_fine"),
    [
        ([(b"host", b"a"), (b"x", b"1"), (b"x", b"2")], True),
        ([(b"host", b"a"), (b"host", b"a")], False),
        ([(b"content-length", b"1"), (b"transfer-encoding", b"chunked")], False),
        ([(b"content-length", b"-1")], False),
        ([(b"content-length", b"1" * 19)], False),
        ([(b"transfer-encoding", b"identity")], False),
        ([(b"x-%d" % n, b"") for n in range(101)], False),
    ],
)
def test_headers_are_read_strictly(raw: list[tuple[bytes, bytes]], is_fine: bool) -> None:
    assert (read_headers(raw)[1] is None) is is_fine


def test_hosts_are_what_was_bound_and_what_was_allowed() -> None:
    assert "localhost" in allowed_hosts(ServerSettings())
    remote = allowed_hosts(ServerSettings(host="10.0.0.1", allowed_hosts=("Box.Example",)))
    assert remote == {"10.0.0.1", "box.example"}


def test_a_wildcard_among_the_names_of_hosts_stands_for_one_label() -> None:
    names = allowed_hosts(ServerSettings(allowed_hosts=("*.box.example",)))
    assert answers_to(names, "8000-abc.box.example")
    assert answers_to(names, "localhost")
    for other in ("box.example", "a.b.box.example", "evilbox.example", "*.example", ""):
        assert not answers_to(names, other)


def test_failures_are_counted_per_address_in_bounded_memory() -> None:
    failures = Failures()
    assert not failures.is_full("a")
    assert all(failures.wait_s("a") == 0 for _ in range(10))
    assert failures.is_full("a")
    assert failures.wait_s("a") > 0
    assert not failures.is_full("b")
    assert failures.wait_s("b") == 0
    for n in range(5000):
        failures.wait_s(f"address {n}")
    assert len(failures._buckets) <= 1024


# -- settings ------------------------------------------------------------------------------------


def test_later_settings_win(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        '[server]\nport = 1\nhost = "127.0.0.1"\nstall_s = 5\nwarm = []\n'
        "[most]\nmemory_mb = 128\n[limits]\nwall_s = 3\n[engine]\npool_max = 4\n"
    )
    loaded = load(path, {"port": 3, "host": None}, {"CELLWALL_PORT": "2", "CELLWALL_STALL_S": "6"})
    assert (loaded.server.port, loaded.server.stall_s, loaded.server.warm) == (3, 6.0, ())
    assert loaded.server.most.memory_mb == 128
    assert (loaded.engine.limits.wall_s, loaded.engine.pool_max) == (3, 4)
    assert loaded.keys == ()


def test_tiers_and_tenants_are_read(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        "[tiers.small]\nrunning = 4\ncpus = 2\n[tiers.default]\nsandboxes = 7\n"
        '[tenants]\nalice = "small"\nbob = "default"\n'
    )
    server = load(path, {}, {}).server
    tenants = Tenants(server.tiers, server.tenants)
    assert tenants.use("alice").quotas == Quotas(running=4, cpus=2.0)
    assert tenants.use("bob").quotas == tenants.use("nobody").quotas == Quotas(sandboxes=7)
    assert (tenants.tier("alice"), tenants.tier("nobody")) == ("small", "default")


@pytest.mark.parametrize(
    ("text", "says"),
    [("[tiers.a]\nrunnning = 1", "tiers.a: unknown name 'runnning'"),
     ("[tiers.a]\nrunning = 0", "running = 0 is not a number above 0"),
     ("[tiers.a]\nrunning = 1.5", "running = 1.5 is not int"),
     ("[tiers.a]\nrunning = true", "running"), ("tiers = 1", "tiers is not a section"),
     ("[tiers]\na = 1", "a is not a section"),
     ("[tenants]\nalice = 'gold'", "alice = 'gold': there is no such tier"),
     ("[server]\novercommit_memory = -1.0", "overcommit_memory")],
)  # fmt: skip
def test_wrong_tiers_are_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(path, {}, {})
    assert says in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text",
    ["[server]\nporte = 1", "[server]\nport = '1'", "[server]\nport = true", "[server]\nwarm = 'a'",
     "[server]\nport = -1", "[odd]", "server = 1", "[most]\nmemory_mb = 1", "[limits]\nx = 1",
     "[[keys]]\nsha256 = 'short'", "[[keys]]\ntenant = 'a'", "[[keys]]\nsha256 = 'a'\nkey = 'b'",
     "not toml ="],
)  # fmt: skip
def test_wrong_settings_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UsageError):
        load(path, {}, {})


def test_own_key_is_the_first_admin() -> None:
    (record,) = load(None, {}, {"CELLWALL_API_KEY": "k" * 40}).keys
    assert record.scope == "admin"
    with pytest.raises(UsageError, match="CELLWALL_PORT"):
        load(None, {}, {"CELLWALL_PORT": "x"})
