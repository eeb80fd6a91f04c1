"""Pages of registries, read however hostile they are, and ours as clients read them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.egress.packages.listings import npm_page, offers, python_page
from cellwall.egress.packages.listings.listing import Digest, Malformed, Page, seconds_of

URL = "https://packages.test/simple/dep/"
HEX = "ab" * 32
WHEEL = "dep-1.0-py3-none-any.whl"


def json_page(*files: dict[str, Any], **page: Any) -> Page:
    content = {"meta": {"api-version": "1.1"}, "name": "dep", "files": list(files), **page}
    return python_page.read(json.dumps(content).encode(), python_page.JSON, URL, "dep")


def html_page(text: str) -> Page:
    return python_page.read(text.encode(), "text/html; charset=utf-8", URL, "dep")


def file(**more: Any) -> dict[str, Any]:
    return {"filename": WHEEL, "url": WHEEL, "hashes": {"sha256": HEX}, **more}


def test_page_as_json_is_read() -> None:
    page = json_page(
        file(
            url="../../f/x.whl",
            size=12,
            yanked="it broke",
            **{
                "requires-python": ">=3.8",
                "upload-time": "2024-01-02T03:04:05.5Z",
                "core-metadata": {"sha256": "cd" * 32},
            },
        )
    )
    listed = page.files[WHEEL]
    assert listed.url == "https://packages.test/f/x.whl"
    assert listed.strong == Digest("sha256", HEX)
    assert (listed.requires_python, listed.yanked, listed.has_metadata) == (
        ">=3.8",
        "it broke",
        True,
    )
    assert listed.metadata == Digest("sha256", "cd" * 32)
    assert listed.release.uploaded_at == 1704164645.5
    assert (listed.release.version, listed.release.size) == ("1.0", 12)


def test_page_as_html_is_read() -> None:
    page = html_page(
        f'<!DOCTYPE html><A  HREF="https://files.test/a%20b/{WHEEL}#sha256={HEX}"'
        ' data-requires-python="&gt;=3.8" data-yanked="" data-core-metadata="true">x</a>'
        "<a href='dep-1.1.tar.gz#md5=00112233445566778899aabbccddeeff'>y</a>"
    )
    wheel, source = page.files[WHEEL], page.files["dep-1.1.tar.gz"]
    assert (wheel.strong, wheel.requires_python) == (Digest("sha256", HEX), ">=3.8")
    assert (wheel.yanked, wheel.has_metadata, wheel.metadata) == ("", True, None)
    assert source.url == URL + "dep-1.1.tar.gz"
    assert source.strong is None
    assert source.weak == Digest("md5", "00112233445566778899aabbccddeeff")
    assert (source.release.is_source, source.yanked) == (True, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"filename": "other-1.0-py3-none-any.whl"},
        {"filename": "../dep-1.0-py3-none-any.whl"},
        {"filename": "dep-1.0-py3-none-any.whl\n"},
        {"filename": "dep-1.0.exe"},
        {"filename": "dep-one-py3-none-any.whl"},
        {"filename": 7},
        {"url": "file:///etc/passwd"},
        {"url": "ftp://packages.test/x"},
        {"url": "https://host:0/x"},
        {"url": "https://host:port/x"},
        {"url": "https://[::1/x"},
        {"url": "a b"},
        {"url": "x\r\nHost: y"},
        {"url": None},
    ],
    ids=str,
)
def test_file_that_is_none_of_this_package_is_left_out(wrong: dict[str, Any]) -> None:
    assert list(json_page(file(**wrong)).files) == []
    assert list(json_page(file()).files) == [WHEEL]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hashes", {"sha256": "zz" * 32}),
        ("hashes", {"sha256": HEX[:-2]}),
        ("hashes", {"sha256": 7}),
        ("hashes", []),
        ("size", -1),
        ("size", "12"),
        ("upload-time", "yesterday"),
        ("upload-time", "9999-12-31T23:59:59-14:00"),
        ("upload-time", "0001-01-01T00:00:00+14:00"),
        ("upload-time", 12),
        ("requires-python", "<script>\n"),
        ("requires-python", ["3"]),
        ("core-metadata", "yes"),
        ("yanked", {"a": 1}),
    ],
    ids=str,
)
def test_field_that_is_no_such_field_counts_as_absent(field: str, value: object) -> None:
    listed = json_page(file(**{"hashes": {}, field: value})).files[WHEEL]
    assert listed == json_page(file(hashes={})).files[WHEEL]


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"", python_page.JSON),
        (b"[]", python_page.JSON),
        (b"[" * 100_000, python_page.JSON),
        (b'{"meta": {"api-version": "2.0"}, "files": []}', python_page.JSON),
        (b'{"meta": {"api-version": 1}, "files": []}', python_page.JSON),
        (b'{"meta": {"api-version": "1.0"}, "files": {}}', python_page.JSON),
        (b"\xff\xfe", python_page.JSON),
        (b"PK", "application/zip"),
        (b"", ""),
    ],
)
def test_what_is_no_page_is_malformed(content: bytes, media_type: str) -> None:
    with pytest.raises(Malformed):
        python_page.read(content, media_type, URL, "dep")


@pytest.mark.parametrize(
    "part", ["<a ", '<a "', "<a '", '<a href="', "<a href=x", "<a <", "&#x", '<a b="c" ']
)
def test_time_to_read_html_grows_with_its_length_only(part: str) -> None:
    """As a ratio: four times the text may take some more than four times as long."""

    def seconds(count: int) -> float:
        begun = time.process_time()
        assert html_page(part * count).files == {}
        return time.process_time() - begun

    short = min(seconds(20_000) for _ in range(3))
    assert seconds(80_000) < 12 * max(short, 0.005)


@given(st.text())
def test_any_html_is_a_page(text: str) -> None:
    assert set(html_page(text).files) <= {WHEEL}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_any_fields_of_a_file_are_read_or_left_out(value: Any) -> None:
    for field in (*file(), "yanked", "core-metadata", "upload-time", "requires-python", "size"):
        page = json_page(file(**{field: value}))
        python_page.as_json("dep", offers.offered(page, {}))
        python_page.as_html("dep", offers.offered(page, {}))


def test_page_that_we_write_is_read_as_it_was() -> None:
    page = json_page(
        file(yanked='"><script>', **{"requires-python": ">=3.8,<4", "core-metadata": True}),
        {**file(), "filename": "dep-2.0.tar.gz", "size": 3, "upload-time": "2024-01-02T00:00:00Z"},
    )
    listed = offers.offered(page, {})
    as_json = python_page.read(python_page.as_json("dep", listed), python_page.JSON, URL, "dep")
    as_html = html_page(python_page.as_html("dep", listed).decode())
    for again in (as_json, as_html):
        assert list(again.files) == list(page.files)
        wheel = again.files[WHEEL]
        assert wheel.url == f"https://packages.test/files/pypi/{HEX}/{WHEEL}"
        assert (wheel.strong, wheel.yanked) == (Digest("sha256", HEX), '"><script>')
        assert (wheel.requires_python, wheel.has_metadata) == (">=3.8,<4", True)
    assert as_json.files["dep-2.0.tar.gz"].release == page.files["dep-2.0.tar.gz"].release
    assert b"<script>" not in python_page.as_html("dep", listed)


def test_page_that_is_written_again_says_what_is_refused_now() -> None:
    page = json_page(file(), {**file(), "filename": "dep-2.0-py3-none-any.whl"})

    def yanked(*refused: str) -> list[object]:
        written = python_page.as_json("dep", offers.offered(page, dict.fromkeys(refused, "no")))
        return [each["yanked"] for each in json.loads(written)["files"]]

    assert yanked() == [False, False]
    assert yanked(WHEEL) == ["dep 1.0 is refused: no", False]
    assert yanked("dep-2.0-py3-none-any.whl") == [False, "dep 2.0 is refused: no"]
    assert yanked() == [False, False]


def test_refused_file_is_never_one_that_a_range_would_choose() -> None:
    page = json_page(file(), {**file(), "filename": "dep-2.0-py3-none-any.whl"})
    two = "dep-2.0-py3-none-any.whl"
    listed = {each.file_name: each.yanked for each in offers.offered(page, {two: "denied"})}
    assert listed == {WHEEL: None, two: "dep 2.0 is refused: denied"}
    everything = offers.offered(page, {WHEEL: "denied", two: "denied"})
    assert [each.yanked for each in everything] == [None, None], "then one is asked for, and hears"
    hint = offers.hint(page, {two: "denied"})
    assert [each.version for each in hint] == ["0+2.0.is.refused.here"]
    assert offers.hint(page, {}) == []


def test_hint_does_not_hide_early_versions_from_pip() -> None:
    early = {**file(), "filename": "dep-2.0rc1-py3-none-any.whl"}
    assert offers.hint(json_page(file(), early), {WHEEL: "denied"}) == []


@pytest.mark.parametrize(
    ("accept", "is_json"),
    [
        (f"{python_page.JSON}, {python_page.HTML}; q=0.1, text/html; q=0.01", True),
        (f"{python_page.JSON};q=0.2, text/html", False),
        ("text/html", False),
        ("*/*", False),
        ("", False),
        (python_page.JSON, True),
        (f"{python_page.JSON};q=0", False),
        (";" * 1000, False),
    ],
)
def test_client_gets_the_kind_of_page_it_likes_best(accept: str, is_json: bool) -> None:
    media_type, write = offers.negotiated(accept)
    assert (media_type == python_page.JSON) is is_json
    assert (write is python_page.as_json) is is_json


def test_dates() -> None:
    assert seconds_of("1970-01-02") == 86_400
    assert seconds_of("x" * 1000) is None


# ── npm ───────────────────────────────────────────────────────────────────────────────────────


def version(number: str, **more: Any) -> dict[str, Any]:
    tarball = f"https://packages.test/dep-{number}.tgz"
    dist = {"tarball": tarball, "integrity": "sha512-" + "A" * 86 + "=="}
    return {"name": "dep", "version": number, "dist": dist, **more}


def packument(*versions: dict[str, Any], **more: Any) -> Page:
    page = {
        "name": "dep",
        "dist-tags": {"latest": versions[-1]["version"]},
        "versions": {each["version"]: each for each in versions},
        **more,
    }
    return npm_page.read(json.dumps(page).encode(), URL, "dep")


def test_packument_leads_to_us_and_says_what_npm_needs_only() -> None:
    page = packument(
        version("1.0.0", dependencies={"x": "^1"}, scripts={"postinstall": "evil"}, readme="…"),
        time={"1.0.0": "2024-01-02T03:04:05.000Z", "modified": "2024-01-02T03:04:05.000Z"},
    )
    answer = json.loads(npm_page.written(page, {}, "http://packages.test:3128"))
    kept = answer["versions"]["1.0.0"]
    assert kept["dist"]["tarball"] == "http://packages.test:3128/npm/dep/-/dep-1.0.0.tgz"
    assert kept["dist"]["integrity"].startswith("sha512-")
    assert kept["dependencies"] == {"x": "^1"}
    assert not {"scripts", "readme"} & set(kept)
    assert answer["time"] == {"1.0.0": "2024-01-02T03:04:05.000000Z"}


def test_latest_moves_to_an_older_release_that_is_allowed() -> None:
    page = packument(version("1.0.0"), version("1.1.0-rc.1"), version("3.0.0"), version("2.0.0"))
    answer = json.loads(npm_page.written(page, {"2.0.0": "denied"}, "http://x"))
    assert answer["dist-tags"] == {"latest": "1.0.0"}
    assert list(answer["policyRestrictions"]["versions"]) == ["2.0.0"]
    assert answer["policyRestrictions"]["message"] == "dep 2.0.0 is refused: denied"


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": "2.0.0"},
        {"dist": None},
        {"dist": {"tarball": "file:///etc/passwd"}},
        {"dist": {"tarball": 7}},
        {"dist": {}},
    ],
    ids=str,
)
def test_version_that_is_none_is_left_out(wrong: dict[str, Any]) -> None:
    page = {"name": "dep", "versions": {"1.0.0": {**version("1.0.0"), **wrong}}}
    assert npm_page.read(json.dumps(page).encode(), URL, "dep").files == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"name": "other"}', b'{"name": "dep", "versions": []}', b"[" * 100_000],
)
def test_what_is_no_packument_is_malformed(content: bytes) -> None:
    with pytest.raises(Malformed):
        npm_page.read(content, URL, "dep")


@pytest.mark.parametrize(
    ("dist", "strong", "weak"),
    [
        ({"integrity": "sha1-AAAAAAAAAAAAAAAAAAAAAAAAAAA="}, None, "00" * 20),
        ({"shasum": "ab" * 20}, None, "ab" * 20),
        ({"integrity": "sha512-!!!!"}, None, None),
        ({"integrity": "sha512-AAAA"}, None, None),
        ({"integrity": 7, "shasum": 8}, None, None),
        ({}, None, None),
    ],
    ids=str,
)
def test_integrity(dist: dict[str, Any], strong: str | None, weak: str | None) -> None:
    made = version("1.0.0", dist={"tarball": "x.tgz", **dist})
    listed = packument(made).files["dep@1.0.0.tgz"]
    assert (listed.strong and listed.strong.hex) == strong
    assert (listed.weak and listed.weak.hex) == weak
