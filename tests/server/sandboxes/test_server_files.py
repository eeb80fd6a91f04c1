"""Files over HTTP: reading, writing, forms, archives, signed addresses; hostile trees (group C)."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import threading
import time

import httpx
import pytest

import cellwall
from cellwall.model.errors import UsageError
from kit.servers import ALICE, BOB, Server, error_of, new_sandbox, read_all, running

MIB = 1024 * 1024


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client()


@pytest.fixture
def sandbox(client: httpx.Client) -> str:
    return f"/sandboxes/{new_sandbox(client)}"


def put(client: httpx.Client, sandbox: str, path: str, data: bytes) -> httpx.Response:
    return client.put(f"{sandbox}/files", params={"path": path}, content=data)


def get(client: httpx.Client, sandbox: str, path: str, **headers: str) -> httpx.Response:
    return client.get(f"{sandbox}/files", params={"path": path}, headers=headers)


def shell(client: httpx.Client, sandbox: str, line: str) -> str:
    answer = client.post(
        f"{sandbox}/commands", json={"command": line}, headers={"Accept": "application/json"}
    ).json()
    assert answer["verdict"] == "ok", answer
    return str(answer["stdout"])


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 5 * MIB + 7])
def test_what_is_written_is_read(client: httpx.Client, sandbox: str, size: int) -> None:
    data = hashlib.shake_128(b"seed").digest(size)
    assert put(client, sandbox, "a/b.bin", data).json() == {"path": "a/b.bin", "size": size}
    assert get(client, sandbox, "a/b.bin").content == data
    assert shell(client, sandbox, "ls -A a") == "b.bin\n"


def test_mode_and_append(client: httpx.Client, sandbox: str) -> None:
    path = {"path": "run.sh", "mode": "755"}
    client.put(f"{sandbox}/files", params=path, content=b"#!/bin/sh\n").raise_for_status()
    more = client.put(
        f"{sandbox}/files", params={"path": "run.sh", "append": "true"}, content=b"echo hi\n"
    )
    assert more.json()["size"] == 18
    assert shell(client, sandbox, "./run.sh") == "hi\n"


def test_metadata_is_given_and_shown(server: Server, client: httpx.Client, sandbox: str) -> None:
    given = {"author": "me", "q": 'a&b="%20"'}
    params = {"path": "f", "metadata": json.dumps(given)}
    client.put(f"{sandbox}/files", params=params, content=b"x").raise_for_status()
    assert client.get(f"{sandbox}/files/stat", params={"path": "f"}).json()["metadata"] == given
    with cellwall.connect(server.address, api_key=ALICE) as remote, remote.Sandbox() as box:
        box.files.write("f", "x", metadata=given)
        assert [each.metadata for each in box.files.list()] == [given]
        with pytest.raises(UsageError, match="printable ASCII"):
            box.files.write("f", "y", metadata={"k": "ü"})
        box.files.write("f", "y")
        assert box.files.stat("f").metadata == {}


@pytest.mark.parametrize(
    "more",
    [
        {"metadata": "{"}, {"metadata": "[]"}, {"metadata": '{"k": 1}'}, {"metadata": '{"": ""}'},
        {"metadata": json.dumps({"k": "v" * 4087})}, {"metadata": "{}", "append": "true"},
    ],
)  # fmt: skip
def test_metadata_that_no_file_may_have_is_refused(
    client: httpx.Client, sandbox: str, more: dict[str, str]
) -> None:
    answer = client.put(f"{sandbox}/files", params={"path": "refused", **more}, content=b"x")
    assert (answer.status_code, bool(error_of(answer))) == (400, True), answer.text
    assert shell(client, sandbox, "ls -A") == ""


@pytest.mark.parametrize(
    ("wanted", "status", "content"),
    [
        ("bytes=0-3", 206, b"0123"), ("bytes=4-", 206, b"456789"), ("bytes=-2", 206, b"89"),
        ("bytes=0-999", 206, b"0123456789"), ("bytes=10-", 416, None), ("bytes=5-2", 416, None),
        ("bytes=0-1,3-4", 200, b"0123456789"), ("lines=1-2", 200, b"0123456789"),
        ("bytes=-0", 416, None),
    ],
)  # fmt: skip
def test_ranges(
    client: httpx.Client, sandbox: str, wanted: str, status: int, content: bytes | None
) -> None:
    put(client, sandbox, "f", b"0123456789")
    answer = get(client, sandbox, "f", Range=wanted)
    assert answer.status_code == status
    if content is not None:
        assert answer.content == content
        assert int(answer.headers["content-length"]) == len(content)


def test_downloads_are_never_pages_of_ours(client: httpx.Client, sandbox: str) -> None:
    """K17."""
    put(client, sandbox, "x.html", b"<script>alert(1)</script>")
    headers = get(client, sandbox, "x.html").headers
    assert headers["content-type"] == "application/octet-stream"
    assert headers["content-disposition"].startswith("attachment;")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("sandbox")


@pytest.mark.parametrize(
    "name", ["a\nb", 'a"b', "a\r\nX-Evil: 1", "ü€", "a;b", "a%0d%0ab", "\u202ex"]
)
def test_names_cannot_break_headers(client: httpx.Client, sandbox: str, name: str) -> None:
    """K09: such a name made inside, asked for from outside."""
    code = f"open({name!r}, 'w').write('x')"
    client.post(f"{sandbox}/execute", json={"code": code}).raise_for_status()
    answer = get(client, sandbox, name)
    assert "x-evil" not in answer.headers
    if answer.status_code == 200:
        disposition = answer.headers["content-disposition"]
        assert disposition.startswith("attachment; filename*=UTF-8''")
        assert disposition.isascii()
        assert not set(disposition[len("attachment; filename*=UTF-8''") :]) & set('"; \r\n')
    else:
        assert answer.status_code == 400
    assert client.get(f"{sandbox}/files/list").status_code == 200


def test_form_writes_every_file(client: httpx.Client, sandbox: str) -> None:
    big = b"z" * (3 * MIB)
    answer = client.post(
        f"{sandbox}/files",
        params={"path": "up"},
        files=[("a", ("one.txt", b"1")), ("b", ("two.bin", big)), ("c", ("three", b""))],
        data={"field": "ignored"},
    )
    assert answer.json() == {
        "files": [
            {"path": "up/one.txt", "size": 1},
            {"path": "up/two.bin", "size": len(big)},
            {"path": "up/three", "size": 0},
        ]
    }
    assert get(client, sandbox, "up/two.bin").content == big


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "..", "a\\b"])
def test_form_names_are_names(client: httpx.Client, sandbox: str, name: str) -> None:
    answer = client.post(f"{sandbox}/files", files={"f": (name, b"x")})
    assert answer.status_code == 400
    assert shell(client, sandbox, "ls -A") == ""


def test_broken_forms_are_refused(client: httpx.Client, sandbox: str) -> None:
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    for body in (b"--b\r\nContent-Disposition: form-data; name=f; filename=x\r\n\r\nhalf", b"junk"):
        answer = client.post(f"{sandbox}/files", content=body, headers=kind)
        assert answer.status_code == 400, answer.text
    many = [("f", (f"n{n}", b"")) for n in range(120)]
    assert client.post(f"{sandbox}/files", files=many).status_code == 413
    head = b"--b\r\nContent-Disposition: form-data; name=f; filename=" + b"x" * 20_000
    assert client.post(f"{sandbox}/files", content=head, headers=kind).status_code in {400, 413}
    for count, status in ((2, 200), (3, 413)):
        head = b"--b\r\nContent-Disposition: form-data; name=f; filename=x\r\n"
        whole = head + (b"X: " + b"x" * 3000 + b"\r\n") * count + b"\r\nx\r\n--b--\r\n"
        answer = client.post(f"{sandbox}/files", content=whole, headers=kind)
        assert answer.status_code == status, answer.text


def test_list_stat_mkdir_move_remove(client: httpx.Client, sandbox: str) -> None:
    client.post(f"{sandbox}/files/mkdir", json={"path": "d/e"}).raise_for_status()
    put(client, sandbox, "d/e/f", b"123")
    body = {"path": "d/e/f", "target": "d/g"}
    client.post(f"{sandbox}/files/move", json=body).raise_for_status()
    entries = client.get(f"{sandbox}/files/list", params={"path": "d"}).json()["entries"]
    assert {(each["name"], each["type"]) for each in entries} == {("e", "directory"), ("g", "file")}
    stat = client.get(f"{sandbox}/files/stat", params={"path": "d/g"}).json()
    assert (stat["size"], stat["type"]) == (3, "file")
    full = client.delete(f"{sandbox}/files", params={"path": "d"})
    assert full.status_code in {400, 409}
    gone = client.delete(f"{sandbox}/files", params={"path": "d", "recursive": "true"})
    assert gone.status_code == 200
    assert error_of(get(client, sandbox, "d/g"))["reason"] == "not_found"


def test_trees_travel_as_tar_both_ways(client: httpx.Client, sandbox: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in {"a.txt": b"one", "d/b.txt": b"t" * (2 * MIB)}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    answer = client.put(
        f"{sandbox}/files/archive",
        params={"path": "in"},
        content=buffer.getvalue(),
        headers={"Content-Type": "application/x-tar"},
    )
    assert answer.json() == {"files": 2, "bytes": 2 * MIB + 3}
    back = client.get(f"{sandbox}/files/archive", params={"path": "in"})
    assert back.headers["content-disposition"] == "attachment; filename*=UTF-8''in.tar"
    with tarfile.open(fileobj=io.BytesIO(back.content)) as tar:
        files = [member for member in tar if member.isfile()]
        assert {(member.name, member.size) for member in files} == {
            ("a.txt", 3), ("d/b.txt", 2 * MIB),
        }  # fmt: skip


def test_hostile_archive_is_refused_inside(client: httpx.Client, sandbox: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("../escape")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    answer = client.put(
        f"{sandbox}/files/archive",
        content=buffer.getvalue(),
        headers={"Content-Type": "application/x-tar"},
    )
    assert answer.status_code == 400
    assert shell(client, sandbox, "ls -A ..; ls -A").split() == ["user"]


def test_signed_addresses_do_one_thing_for_a_while(
    server: Server, client: httpx.Client, sandbox: str
) -> None:
    put(client, sandbox, "r", b"readable")
    sign = f"{sandbox}/files/sign"
    read = client.post(sign, json={"path": "r", "operation": "read"}).json()
    write = client.post(sign, json={"path": "w", "operation": "write", "max_bytes": 10}).json()
    stranger = server.client(None)
    assert (read["method"], write["method"]) == ("GET", "PUT")
    assert stranger.get(read["url"]).content == b"readable"
    assert stranger.get(read["url"], headers={"Range": "bytes=0-3"}).content == b"read"
    assert stranger.put(write["url"], content=b"0123456789").json() == {"path": "w", "size": 10}
    assert stranger.put(write["url"], content=b"01234567890").status_code == 413
    assert stranger.get(write["url"]).status_code == 405
    assert stranger.put(read["url"], content=b"x").status_code == 405
    assert stranger.get(read["url"][:-4] + "AAAA").status_code == 404
    brief = client.post(sign, json={"path": "r", "operation": "read", "expires_s": 0.05}).json()
    deadline = time.monotonic() + 5
    while stranger.get(brief["url"]).status_code != 404:
        assert time.monotonic() < deadline
    client.delete(sandbox)
    assert stranger.get(read["url"]).status_code == 410


# -- group C: the tree is hostile ----------------------------------------------------------------


def test_links_lead_nowhere_outside(client: httpx.Client, sandbox: str) -> None:
    """C01, C02: the file of the host has a word that must not come back; inside's own has one."""
    shell(
        client, sandbox, "ln -s /etc/passwd p; ln -s / root; echo inside > /tmp/t; ln -s /tmp/t t"
    )
    assert b"daemon" not in get(client, sandbox, "p").content
    assert b"daemon" not in get(client, sandbox, "root/etc/passwd").content
    for path in ("root/root", "root/home", "root/var", "root/proc/1/root"):
        listed = client.get(f"{sandbox}/files/list", params={"path": path})
        assert ".ssh" not in listed.text
        assert "lib/cellwall" not in listed.text
    assert get(client, sandbox, "t").content == b"inside\n"


def test_upload_through_a_link_stays_inside(client: httpx.Client, sandbox: str) -> None:
    """C05: the name exists already, as a link."""
    shell(client, sandbox, "ln -s /etc/cw-planted w; mkdir real; ln -s real d")
    assert put(client, sandbox, "w", b"x").status_code in {200, 403, 404, 400}
    assert put(client, sandbox, "d/f", b"x").status_code == 200
    assert not os.path.lexists("/etc/cw-planted")


def test_special_files_fail_soon(client: httpx.Client, sandbox: str) -> None:
    """C07, C08."""
    shell(
        client, sandbox,
        "mkfifo fifo; ln -s /dev/zero zero; ln -s /dev/urandom random; "
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"",
    )  # fmt: skip
    for path in ("fifo", "sock", "zero", "random", "/proc/self/mem", "/dev/tty"):
        began = time.monotonic()
        answer = get(client, sandbox, path)
        assert answer.status_code >= 400, path
        assert time.monotonic() - began < 1


def test_growing_file_is_sent_at_its_length(client: httpx.Client, sandbox: str) -> None:
    """C09."""
    grow = "yes > grow & sleep 0.3; echo started"
    client.post(f"{sandbox}/commands", json={"command": grow, "background": True})
    time.sleep(0.2)
    answer = get(client, sandbox, "grow")
    assert len(answer.content) == int(answer.headers["content-length"])


def test_shrinking_file_breaks_the_download_off(client: httpx.Client, sandbox: str) -> None:
    """C10: what was announced cannot be sent, and the client can see that."""
    shell(client, sandbox, "head -c 50000000 /dev/zero > shrink")
    with client.stream("GET", f"{sandbox}/files", params={"path": "shrink"}) as answer:
        assert answer.headers["content-length"] == "50000000"
        pieces = answer.iter_raw()
        next(pieces)
        put(client, sandbox, "shrink", b"")
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)


def test_many_files_are_listed_in_part(client: httpx.Client, sandbox: str) -> None:
    """C11."""
    shell(client, sandbox, "mkdir many; cd many; seq 1 12000 | xargs touch")
    began = time.monotonic()
    answer = client.get(f"{sandbox}/files/list", params={"path": "many", "limit": 10_000}).json()
    assert answer["truncated"] is True
    assert 1000 < len(answer["entries"]) <= 10_000
    assert time.monotonic() - began < 10


HOSTILE_NAMES = ["", "..", "../x", "a/../../x", "a\\b", "a\0b", "x" * 4097, "a/" * 3000, "a\x1bb",
                 "d/" + "n" * 256]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_are_refused_before_anything_starts(
    client: httpx.Client, sandbox: str, name: str
) -> None:
    """C13."""
    before = shell(client, sandbox, "ls -A . .. / /tmp")
    for answer in (
        put(client, sandbox, name, b"x"),
        get(client, sandbox, name),
        client.post(f"{sandbox}/files/mkdir", json={"path": name}),
        client.post(f"{sandbox}/files/move", json={"path": "a", "target": name}),
        client.post(f"{sandbox}/files/sign", json={"path": name, "operation": "write"}),
    ):
        assert answer.status_code == 400, (name, answer.text)
    assert shell(client, sandbox, "ls -A . .. / /tmp") == before
    assert put(client, sandbox, "plain", b"x").status_code == 200


def test_percent_forms_are_names_and_nothing_more(client: httpx.Client, sandbox: str) -> None:
    put(client, sandbox, "%2e%2e%2fx", b"literal")
    assert shell(client, sandbox, "ls -A") == "%2e%2e%2fx\n"


@pytest.mark.parametrize("has_length", [True, False], ids=["length", "chunked"])
def test_uploads_above_the_cap_end_early(has_length: bool) -> None:
    """C14: ten gigabytes announced or not; the control is an upload just below the cap."""
    with running(upload_bytes=64 * MIB) as server:
        client = server.client()
        sandbox = f"/sandboxes/{new_sandbox(client)}"
        assert put(client, sandbox, "fine", bytes(32 * MIB)).status_code == 200
        before = server.rss_bytes()
        framing = (
            b"Content-Length: 10737418240\r\n" if has_length else b"Transfer-Encoding: chunked\r\n"
        )
        sent = 0
        with server.connect() as sock:
            sock.sendall(
                f"PUT {sandbox}/files?path=big HTTP/1.1\r\nHost: localhost\r\n".encode()
                + f"X-API-Key: {ALICE}\r\n".encode() + framing + b"\r\n"
            )  # fmt: skip
            block = bytes(65_536)
            piece = block if has_length else b"10000\r\n" + block + b"\r\n"
            try:
                while sent < 300 * MIB:
                    sock.sendall(piece)
                    sent += len(block)
            except OSError:
                pass
            answer = read_all(sock)
        assert sent < 300 * MIB
        assert answer == b"" or b" 413 " in answer.split(b"\r\n")[0]
        assert server.rss_bytes() - before < 24 * MIB
        assert shell(client, sandbox, "ls -A") == "fine\n"


def test_signed_address_never_allows_more_than_the_server() -> None:
    with running(upload_bytes=MIB) as server:
        client = server.client()
        sandbox = f"/sandboxes/{new_sandbox(client)}"
        asked = {"path": "w", "operation": "write", "max_bytes": 4 * MIB}
        url = client.post(f"{sandbox}/files/sign", json=asked).json()["url"]
        stranger = server.client(None)
        assert stranger.put(url, content=bytes(MIB)).json()["size"] == MIB  # the control
        assert stranger.put(url, content=bytes(2 * MIB)).status_code == 413


def test_upload_larger_than_the_work_area_is_507(client: httpx.Client) -> None:
    sandbox = f"/sandboxes/{new_sandbox(client, limits={'disk_mb': 8})}"
    answer = put(client, sandbox, "big", bytes(20 * MIB))
    assert (answer.status_code, error_of(answer)["reason"]) in {
        (507, "no_space"),
        (413, "too_large"),
    }
    assert shell(client, sandbox, "ls -A") == ""


def test_two_uploads_never_mix(server: Server, sandbox: str) -> None:
    """C15: a reader sees one of the two, whole, or a download that is visibly broken off."""
    size = 3 * MIB
    client = server.client()
    put(client, sandbox, "same", b"a" * size)
    stop = threading.Event()

    def upload(letter: bytes) -> None:
        mine = server.client()
        while not stop.is_set():
            assert put(mine, sandbox, "same", letter * size).status_code == 200

    threads = [threading.Thread(target=upload, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    whole = broken = 0
    try:
        while whole < 4 and whole + broken < 200:
            try:
                content = get(client, sandbox, "same").content
            except httpx.RemoteProtocolError:
                broken += 1
                continue
            assert len(content) == size
            assert len(set(content)) == 1, "a mix of two uploads"
            whole += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert shell(client, sandbox, "ls -A") == "same\n"
    assert whole


def test_artifacts_count_every_time_and_not_what_they_claim(client: httpx.Client) -> None:
    """C16, C17: links to one big file, and a file that claims a petabyte."""
    code = (
        "import os\n"
        "open('big', 'wb').write(bytes(40 * 2**20))\n"
        "for n in range(5): os.link('big', f'l{n}')\n"
        "f = open('sparse', 'wb')\n"
        "try: f.truncate(2**50)\n"
        "except OSError: f.truncate(2**25)\n"
    )
    names = [f"l{n}" for n in range(5)]
    answer = client.post(
        "/execute", json={"code": code, "collect": [*names, "sparse"], "max_memory": "512m"}
    ).json()
    assert sum(each["size"] for each in answer["artifacts"]) <= 64 * MIB
    assert any("more than" in note for note in answer["notes"])


def test_sparse_giant_is_not_downloaded(client: httpx.Client) -> None:
    """C17."""
    sandbox = f"/sandboxes/{new_sandbox(client, limits={'file_mb': 4096, 'disk_mb': 64})}"
    with running(download_bytes=MIB) as server:
        mine = server.client()
        other = f"/sandboxes/{new_sandbox(mine)}"
        shell(mine, other, "truncate -s 2M sparse; truncate -s 1M fits")
        refused = get(mine, other, "sparse")
        assert (refused.status_code, error_of(refused)["reason"]) == (413, "too_large")
        assert len(get(mine, other, "fits").content) == MIB
        assert get(mine, other, "sparse", Range="bytes=0-9").status_code == 206
    assert client.get(sandbox).status_code == 200


def test_files_of_others_are_not_there(server: Server, client: httpx.Client, sandbox: str) -> None:
    put(client, sandbox, "secret", b"of-alice")
    answer = get(server.client(BOB), sandbox, "secret")
    assert answer.status_code == 404
    assert b"of-alice" not in answer.content


def test_changes_are_streamed_as_they_come(client: httpx.Client, sandbox: str) -> None:
    shell(client, sandbox, "mkdir w")
    with client.stream("GET", f"{sandbox}/files/watch", params={"path": "w"}) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        put(client, sandbox, "w/new", b"x")
        lines = answer.iter_lines()
        change = json.loads(next(lines))
        assert (change["seq"], change["type"]) == (1, "change")
        while change.get("target") != "new" and change["path"] != "new":
            change = json.loads(next(lines))
        client.delete(f"{sandbox}/files", params={"path": "w", "recursive": "true"})
        rest = [json.loads(line) for line in lines]
    assert rest[-1]["kind"] == "removed"
    assert rest[-1]["path"] == "."


def test_watch_of_nothing_is_not_found(client: httpx.Client, sandbox: str) -> None:
    answer = client.get(f"{sandbox}/files/watch", params={"path": "none"})
    assert (answer.status_code, error_of(answer)["reason"]) == (404, "not_found")


def test_archive_of_a_virtual_environment_comes_back(client: httpx.Client) -> None:
    """Its interpreter is a link to one outside of the tree, as absolute as `venv` makes it."""
    one, two = (f"/sandboxes/{new_sandbox(client)}" for _ in range(2))
    make = "mkdir w && cd w && python3 -m venv --without-pip v && ln -s ../../up v/up"
    plain = {"Accept": "application/json"}
    client.post(f"{one}/commands", json={"command": make}, headers=plain).raise_for_status()
    params, headers = {"path": "w"}, {"Content-Type": "application/x-tar"}
    tar = client.get(f"{one}/files/archive", params=params).content
    answer = client.put(f"{two}/files/archive", params=params, content=tar, headers=headers)
    assert answer.status_code == 200, answer.text
    command = "w/v/bin/python3 -c 'print(6 * 7)' && readlink w/v/up"
    ran = client.post(f"{two}/commands", json={"command": command}, headers=plain).json()
    assert ran["stdout"] == "42\n../../up\n", ran
    again = client.get(f"{two}/files/archive", params=params).content
    assert names_in(again) == names_in(tar)


def names_in(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return sorted(tar.getnames())


def test_archive_that_breaks_off_leaves_no_half_tree(client: httpx.Client) -> None:
    """Control: in a directory that was there, the answer says how much came."""
    box = f"/sandboxes/{new_sandbox(client)}"
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in ("first", "../evil"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    headers = {"Content-Type": "application/x-tar"}
    for path, said in (("new", "nothing of it is left"), (".", "is there, 1 files")):
        refused = client.put(
            f"{box}/files/archive", params={"path": path}, content=made.getvalue(), headers=headers
        )
        assert refused.status_code == 400
        assert said in error_of(refused)["message"]
    there = client.get(f"{box}/files/list", params={"path": "."}).json()
    assert [each["name"] for each in there["entries"]] == ["first"]
