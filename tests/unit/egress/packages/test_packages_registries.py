"""Registries: whose a name is, where credentials go, what is dialled, what a failure becomes."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cellwall.egress.packages.broker import BrokerSettings
from cellwall.egress.packages.fetching import Times
from cellwall.egress.packages.pages import PageSettings
from cellwall.egress.packages.upstream import Upstream, asked_for
from cellwall.model.errors import UsageError
from kit.packages import made, registries
from kit.packages.asking import Got, ask, brokering
from kit.packages.brokers import upstreams
from kit.packages.registries import Asked, Registry, Reply

SECRET = "s3cr3t"
DEP = made.wheel("dep")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellwall.egress.packages.pages._DELAYS_S", (0.001, 0.001))
    monkeypatch.setattr("cellwall.egress.packages.downloads._DELAY_S", 0.001)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registries.running() as started:
        yield started


@pytest.fixture
def other() -> Iterator[Registry]:
    with registries.running() as started:
        yield started


def pypi(*asked: Registry, names: Sequence[Sequence[str]] = ()) -> list[Upstream]:
    owned = [*names, *((),) * len(asked)]
    return [
        Upstream.of({"registry": "pypi", "url": each.url(), "names": owned[number]})
        for number, each in enumerate(asked)
    ]


async def file_of(broker: Any, name: str, **policy: Any) -> Got:
    """Return the first file that the page of a name lists."""
    page = await ask(broker, f"/simple/{name}/", **policy)
    assert page.status == 200, page.reason
    return await ask(broker, next(iter(page.urls.values())), **policy)


# ── whose a name is ───────────────────────────────────────────────────────────────────────────


def test_first_registry_that_knows_a_name_owns_it(
    registry: Registry, other: Registry, tmp_path: Path
) -> None:
    registry.add(made.wheel("dep", "1.0"))
    other.add(made.wheel("dep", "99.0"))
    other.add(made.wheel("elsewhere"))

    async def run() -> None:
        async with brokering(tmp_path, pypi(registry, other)) as broker:
            page = await ask(broker, "/simple/dep/")
            assert list(page.urls) == ["dep-1.0-py3-none-any.whl"]
            assert not other.asked
            assert (await file_of(broker, "elsewhere")).content
        async with brokering(tmp_path, pypi(other, registry)) as broker:
            page = await ask(broker, "/simple/dep/")
            assert list(page.urls) == ["dep-99.0-py3-none-any.whl"], "by their order alone"

    asyncio.run(run())


@pytest.mark.parametrize(
    "failing",
    [Reply(b"", 500), Reply(b"", 403), Reply(b"", 401), Reply(b"<", headers={"Content-Type": "x"})],
    ids=["500", "403", "401", "no page"],
)
def test_failing_registry_hands_no_name_to_the_next_one(
    registry: Registry, other: Registry, tmp_path: Path, failing: Reply
) -> None:
    registry.replies["/simple/dep/"] = failing
    other.add(made.wheel("dep", "99.0"))

    async def run() -> Got:
        async with brokering(tmp_path, pypi(registry, other)) as broker:
            return await ask(broker, "/simple/dep/")

    got = asyncio.run(run())
    assert got.status == 424
    assert not other.asked
    registry.replies["/simple/dep/"] = Reply(b"", 404)
    assert asyncio.run(run()).status == 200


def test_pinned_name_is_asked_of_its_registry_only(
    registry: Registry, other: Registry, tmp_path: Path
) -> None:
    registry.add(made.wheel("corp-tool", "99.0"))

    async def run(*names: Sequence[str]) -> int:
        async with brokering(tmp_path, pypi(other, registry, names=names)) as broker:
            return (await ask(broker, "/simple/corp-tool/")).status

    assert asyncio.run(run(["corp-*"])) == 404
    assert not registry.asked
    assert asyncio.run(run()) == 200


def test_names_of_one_registry_are_asked_of_no_other() -> None:
    own = Upstream.of({"registry": "npm", "url": "https://a.test", "names": ["@corp/*"]})
    rest = Upstream.of({"registry": "npm", "url": "https://b.test"})
    assert asked_for([own, rest], "npm", "@corp/x") == [own]
    assert asked_for([own, rest], "npm", "left") == [rest]
    assert asked_for([own, rest], "pypi", "left") == []


# ── credentials ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"registry": "conda", "url": "https://a.test"},
        {"registry": "pypi", "url": "file:///srv/simple"},
        {"registry": "pypi", "url": "https://a.test/?x=1"},
        {"registry": "pypi", "url": "https://a.test:99999/"},
        {"registry": "pypi", "url": "https://[/"},
        {"registry": "pypi", "url": "https:///simple"},
        {"registry": "pypi", "url": "https://a.test/ x"},
        {"registry": "pypi", "url": 7},
        {"registry": "pypi", "url": "https://a.test", "name": "x"},
        {"registry": "pypi", "url": "https://a.test", "names": "x"},
        {"registry": "pypi", "url": "https://a.test", "names": ["x>=1"]},
        {"registry": "pypi", "url": f"https://user:{SECRET}@a.test:x/"},
    ],
    ids=ascii,
)
def test_registry_that_is_none_is_refused_without_its_credentials(value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Upstream.of(value)
    assert caught.value.remedy
    assert SECRET not in str(caught.value)


def test_credentials_go_upstream_and_into_no_answer_log_or_text(
    registry: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = registry.add(DEP)
    asked = upstreams(registry, f"user:{SECRET}@")
    said: list[Got] = []

    async def run() -> None:
        async with brokering(tmp_path, asked) as broker:
            said.append(await ask(broker, "/simple/dep/"))
            said.append(await file_of(broker, "dep"))
            registry.replies[path] = Reply(b"", 403)
            registry.replies["/simple/gone/"] = Reply(b"", 500)
            said.append(await ask(broker, "/simple/gone/"))
            said.append(await ask(broker, "/npm/gone"))

    asyncio.run(run())
    assert {each.headers.get("authorization") for each in registry.asked} == {
        "Basic dXNlcjpzM2NyM3Q="
    }
    assert len(said) == 4
    for text in (repr(said), repr(asked), str(asked), caplog.text):
        assert SECRET not in text
        assert "dXNlcjpzM2NyM3Q=" not in text


def test_credentials_follow_no_link_and_no_redirect_to_another_origin(
    registry: Registry, other: Registry, tmp_path: Path
) -> None:
    other.replies["/file"] = Reply(DEP.content)
    registry.add(DEP, url=other.url("/file"), metadata=False)
    away = other.url("/simple/away/")
    registry.replies["/simple/away/"] = Reply(b"", 302, {"Location": away})

    async def run() -> None:
        settings = BrokerSettings(listed=("127.0.0.0/8",))
        async with brokering(tmp_path, upstreams(registry, "user:pass@"), settings) as broker:
            assert (await file_of(broker, "dep")).content == DEP.content
            assert (await ask(broker, "/simple/away/")).status == 404

    asyncio.run(run())
    assert [each.path for each in other.asked] == ["/file", "/simple/away/"]
    assert not any("authorization" in each.headers for each in other.asked)
    assert all("authorization" in each.headers for each in registry.asked)


# ── addresses ─────────────────────────────────────────────────────────────────────────────────


def test_link_to_an_address_that_is_not_public_is_not_followed(
    registry: Registry, other: Registry, tmp_path: Path
) -> None:
    """The witness is a server on loopback; the control lists it."""
    other.replies["/latest/meta-data"] = Reply(DEP.content)
    registry.add(DEP, with_hash=False, url=other.url("/latest/meta-data"))

    async def run(*listed: str) -> Got:
        settings = BrokerSettings(listed=listed)
        async with brokering(tmp_path, pypi(registry), settings) as broker:
            return await file_of(broker, "dep")

    got = asyncio.run(run())
    assert (got.status, other.asked) == (424, [])
    assert "not public, and not listed" in got.reason
    assert asyncio.run(run("127.0.0.0/8")).content == DEP.content


def test_redirect_to_an_address_that_is_not_public_is_not_followed(
    registry: Registry, other: Registry, tmp_path: Path
) -> None:
    registry.replies["/simple/dep/"] = Reply(b"", 302, {"Location": other.url("/simple/dep/")})
    other.add(DEP)

    async def run(*listed: str) -> Got:
        settings = BrokerSettings(listed=listed)
        async with brokering(tmp_path, pypi(registry), settings) as broker:
            return await ask(broker, "/simple/dep/")

    assert (asyncio.run(run()).status, other.asked) == (424, [])
    assert asyncio.run(run("127.0.0.1/32")).status == 200


def test_address_is_resolved_once_and_dialled_as_checked(
    registry: Registry, tmp_path: Path
) -> None:
    """A name that answers something else the second time is not asked a second time."""
    registry.add(DEP, url=f"http://files.test:{registry.port}/files/{DEP.file_name}")
    answers = [["127.0.0.1"], ["192.0.2.1"]]
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return answers.pop(0) if host == "files.test" else ["127.0.0.1"]

    async def run() -> Got:
        settings = BrokerSettings(listed=("127.0.0.1/32",))
        async with brokering(tmp_path, pypi(registry), settings, resolve=resolve) as broker:
            return await file_of(broker, "dep")

    assert asyncio.run(run()).content == DEP.content
    assert asked.count("files.test") == 1


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://x/", "", "https://[", "x\x01y", "/simple/circle/"],
)
def test_redirect_to_nowhere_ends(registry: Registry, tmp_path: Path, location: str) -> None:
    registry.replies["/simple/circle/"] = Reply(b"", 302, {"Location": location})

    async def run() -> Got:
        async with brokering(tmp_path, pypi(registry)) as broker:
            return await ask(broker, "/simple/circle/")

    got = asyncio.run(run())
    assert got.status == 424
    assert "redirects" in got.reason
    assert registry.count("/simple/circle/") <= 6


# ── failures, and pages that are kept ─────────────────────────────────────────────────────────


def test_page_is_asked_for_once_while_it_is_fresh(registry: Registry, tmp_path: Path) -> None:
    registry.add(DEP)

    async def run() -> None:
        async with brokering(tmp_path, pypi(registry)) as broker:
            got = await asyncio.gather(*(ask(broker, "/simple/dep/") for _ in range(50)))
            assert {each.status for each in got} == {200}
            assert {(await ask(broker, "/simple/none/")).status for _ in range(5)} == {404}

    asyncio.run(run())
    assert registry.count("/simple/dep/") == 1
    assert registry.count("/simple/none/") == 1


def test_failure_that_may_pass_is_tried_again_and_then_remembered(
    registry: Registry, tmp_path: Path
) -> None:
    registry.replies["/simple/dep/"] = Reply(b"", 503)

    async def run() -> list[Got]:
        async with brokering(tmp_path, pypi(registry)) as broker:
            return [await ask(broker, "/simple/dep/") for _ in range(5)]

    got = asyncio.run(run())
    assert {each.status for each in got} == {424}
    assert "answers with status 503" in got[0].reason
    assert registry.count("/simple/dep/") == 3


def test_registry_that_recovers_is_heard_at_the_next_try(
    registry: Registry, tmp_path: Path
) -> None:
    registry.add(DEP)
    good, calls = registry.replies["/simple/dep/"], []

    def once(asked: Asked) -> Reply:
        calls.append(asked)
        assert isinstance(good, Reply)
        return Reply(b"", 502) if len(calls) == 1 else good

    registry.replies["/simple/dep/"] = once

    async def run() -> Got:
        async with brokering(tmp_path, pypi(registry)) as broker:
            return await ask(broker, "/simple/dep/")

    assert (asyncio.run(run()).status, len(calls)) == (200, 2)


def test_old_page_serves_while_its_registry_fails_and_says_so(
    registry: Registry, tmp_path: Path
) -> None:
    registry.add(DEP)
    settings = BrokerSettings(pages=PageSettings(fresh_s=0, trouble_s=0))

    async def run() -> None:
        async with brokering(tmp_path, pypi(registry), settings) as broker:
            fresh = await ask(broker, "/simple/dep/")
            assert "Cellwall-Stale" not in fresh.headers
            assert (await file_of(broker, "dep")).content == DEP.content
            registry.replies.clear()
            registry.replies["/simple/dep/"] = Reply(b"", 500)
            stale = await ask(broker, "/simple/dep/")
            assert (stale.status, stale.urls) == (200, fresh.urls)
            assert int(stale.headers["Cellwall-Stale"]) >= 1
            assert (await file_of(broker, "dep")).content == DEP.content
            del registry.replies["/simple/dep/"]
            assert (await ask(broker, "/simple/dep/")).status == 404, "its registry has it no more"

    asyncio.run(run())


def test_page_that_is_too_old_does_not_serve(registry: Registry, tmp_path: Path) -> None:
    registry.add(DEP)
    settings = BrokerSettings(pages=PageSettings(fresh_s=0, trouble_s=0, stale_s=-1))

    async def run() -> None:
        async with brokering(tmp_path, pypi(registry), settings) as broker:
            assert (await ask(broker, "/simple/dep/")).status == 200
            registry.replies["/simple/dep/"] = Reply(b"", 500)
            assert (await ask(broker, "/simple/dep/")).status == 424

    asyncio.run(run())


def test_page_that_has_not_changed_does_not_come_again(registry: Registry, tmp_path: Path) -> None:
    registry.add(DEP)
    page = registry.replies["/simple/dep/"]
    assert isinstance(page, Reply)

    def tagged(asked: Asked) -> Reply:
        if asked.headers.get("if-none-match") == '"one"':
            return Reply(b"", 304)
        return Reply(page.content, headers={**page.headers, "ETag": '"one"'})

    registry.replies["/simple/dep/"] = tagged
    settings = BrokerSettings(pages=PageSettings(fresh_s=0))

    async def run() -> None:
        async with brokering(tmp_path, pypi(registry), settings) as broker:
            first, second = [await ask(broker, "/simple/dep/") for _ in range(2)]
            assert (first.status, first.content) == (200, second.content)

    asyncio.run(run())
    assert registry.count("/simple/dep/") == 2


def test_registry_that_does_not_answer_is_given_up_in_time(
    registry: Registry, tmp_path: Path
) -> None:
    given_up = threading.Event()

    def slow(asked: Asked) -> Reply:
        given_up.wait(30)
        return Reply(b"", 404)

    registry.replies["/simple/dep/"] = slow
    settings = BrokerSettings(
        pages=PageSettings(total_s=0.2), times=Times(connect_s=0.1, silent_s=0.1)
    )

    async def run() -> Got:
        async with brokering(tmp_path, pypi(registry), settings) as broker:
            return await ask(broker, "/simple/dep/")

    got = asyncio.run(run())
    given_up.set()
    assert got.status == 424
    assert "does not answer in time" in got.reason


def test_registry_that_is_not_there_is_said(tmp_path: Path) -> None:
    with registries.running() as gone:
        pass

    async def run() -> Got:
        async with brokering(tmp_path, pypi(gone)) as broker:
            return await ask(broker, "/simple/dep/")

    got = asyncio.run(run())
    assert got.status == 424
    assert "cannot be connected to" in got.reason
    assert "127.0.0.1" not in got.reason


@pytest.mark.parametrize("says_length", [True, False])
def test_page_beyond_its_bound_is_refused(
    registry: Registry, tmp_path: Path, says_length: bool
) -> None:
    registry.add(DEP)
    page = registry.replies["/simple/dep/"]
    assert isinstance(page, Reply)
    content = page.content + b" " * 1024**2
    whole = Reply(content, headers=page.headers)
    parts = Reply(headers=page.headers, pieces=lambda: iter([content]))
    registry.replies["/simple/dep/"] = whole if says_length else parts

    async def run() -> None:
        async with brokering(tmp_path, pypi(registry)) as broker:
            got = await ask(broker, "/simple/dep/", largest_page_mb=1)
            assert (got.status, "larger than 1 MiB" in got.reason) == (451, True)
            assert (await ask(broker, "/simple/dep/", largest_page_mb=2)).status == 200
            assert (await ask(broker, "/simple/dep/", largest_page_mb=1)).status == 451, "kept, too"

    asyncio.run(run())


def test_pages_are_forgotten_beyond_a_number(registry: Registry, tmp_path: Path) -> None:
    settings = BrokerSettings(pages=PageSettings(most_names=10))

    async def run() -> None:
        async with brokering(tmp_path, pypi(registry), settings) as broker:
            for number in range(30):
                await ask(broker, f"/simple/none-{number}/")
            assert len(broker._pages._kept) == 10

    asyncio.run(run())


def test_npm_is_asked_for_ages_only_where_one_is_demanded(
    registry: Registry, tmp_path: Path
) -> None:
    registry.add_npm(made.tarball("left"), age_days=30)

    async def run() -> list[Got]:
        async with brokering(tmp_path, upstreams(registry)) as broker:
            return [
                await ask(broker, "/npm/left"),
                await ask(broker, "/npm/left", min_age_days=7),
                await ask(broker, "/npm/left", min_age_days=60),
            ]

    short, old, young = asyncio.run(run())
    assert "time" not in json.loads(short.content)
    assert list(json.loads(old.content)["versions"]) == ["1.0.0"]
    assert (young.status, "younger than 60 days" in young.reason) == (451, True)
    assert registry.count("/npm/left") == 2


def test_page_of_thousands_of_files_is_whole(registry: Registry, tmp_path: Path) -> None:
    """It is read and written on a thread."""
    files = [
        {"filename": f"dep-1.{number}-py3-none-any.whl", "url": f"/f/{number}", "hashes": {}}
        for number in range(3000)
    ]
    page = {"meta": {"api-version": "1.0"}, "name": "dep", "files": files}
    registry.replies["/simple/dep/"] = Reply(
        json.dumps(page).encode(), headers={"Content-Type": registries.JSON}
    )

    async def run() -> Got:
        async with brokering(tmp_path, pypi(registry)) as broker:
            return await ask(broker, "/simple/dep/", deny=["dep<1.1000"])

    listed = json.loads(asyncio.run(run()).content)["files"]
    assert [each["yanked"] is not False for each in listed] == [n < 1000 for n in range(3000)]
