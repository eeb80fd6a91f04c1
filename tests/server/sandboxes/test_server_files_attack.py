"""Attacks of groups C and K through the HTTP door: races and links against uploads and artifacts.

The witness is a folder of the host that anybody may write to; each attack is also made outside,
where it must succeed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from kit.arena import unconfined
from kit.servers import new_sandbox, running

_UPLOADS = 2000
_FLIP = """
import os, threading
os.mkdir('a'); os.symlink({outside!r}, 'b')
def flip():
    while True:
        try:
            os.rename('a', 'c'); os.rename('b', 'a'); os.rename('a', 'b'); os.rename('c', 'a')
        except OSError: pass
threading.Thread(target=flip, daemon=True).start()
"""


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Of a server whose sandboxes may hold as many files as the race makes."""
    with running() as server:
        yield server.client()


@pytest.fixture
def outside(open_folder: Path) -> Path:
    """A folder of the host, open to everybody: only the wall protects it."""
    made = open_folder / "outside"
    made.mkdir()
    made.chmod(0o777)
    return made


def run(client: httpx.Client, path: str, code: str, **body: object) -> dict[str, Any]:
    answer = client.post(path, json={"code": code, **body}, headers={"Accept": "application/json"})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def _flipped_outside(box: Path, outside: Path) -> bool:
    """The control: somebody who opens paths by name, beside the same race."""
    box.mkdir()
    (box / "a").mkdir()
    (box / "b").symlink_to(outside)
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            for old, new in (("a", "c"), ("b", "a"), ("a", "b"), ("c", "a")):
                (box / old).rename(box / new)

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for number in range(20_000):
            with contextlib.suppress(OSError):
                (box / "a" / str(number)).write_bytes(b"x")
            if any(outside.iterdir()):
                return True
    finally:
        stop.set()
        thread.join()
    return False


@pytest.mark.attack
@pytest.mark.parametrize("case", ["C04"])
def test_two_thousand_uploads_beside_a_flipping_parent_stay_inside(
    client: httpx.Client, outside: Path, tmp_path: Path, case: str
) -> None:
    sandbox = f"/sandboxes/{new_sandbox(client, limits={'inodes': 10_000})}"
    planted = run(client, f"{sandbox}/execute", _FLIP.format(outside=str(outside)))
    assert planted["verdict"] == "ok", planted

    def upload(number: int) -> int:
        answer = client.put(f"{sandbox}/files", params={"path": f"a/{number}"}, content=b"inside")
        return answer.status_code

    with ThreadPoolExecutor(4) as threads:
        said = list(threads.map(upload, range(_UPLOADS)))
    assert set(said) <= {200, 400, 403, 404, 409}, set(said)
    assert said.count(200)  # the race was run, not refused as a whole
    assert list(outside.iterdir()) == []
    assert _flipped_outside(tmp_path / "control", outside)


_LINK = """
import os, sys
for target in {targets!r}:
    try:
        os.link(target, 'linked'); print('LINKED', target)
        os.remove('linked')
    except OSError as error:
        print(os.strerror(error.errno))
print('own', end='')
open('mine', 'w').close(); os.link('mine', 'again'); print(os.stat('again').st_nlink)
"""


@pytest.mark.attack
@pytest.mark.parametrize("case", ["C12"])
def test_hard_link_to_a_file_of_another_uid_is_denied(
    client: httpx.Client, outside: Path, case: str
) -> None:
    targets = ["/etc/passwd", "/bin/sh", "/proc/self/exe", "/proc/1/status", str(outside)]
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    said = run(client, f"{sandbox}/execute", _LINK.format(targets=targets))["stdout"]
    lines = said.splitlines()
    assert lines.pop() == "own2"  # in its own tree it may
    assert len(lines) == len(targets)
    assert not any("LINKED" in line for line in lines), lines
    for target in targets:
        answer = client.post(f"{sandbox}/files/move", json={"path": target, "target": "taken"})
        assert answer.status_code in {400, 403, 404, 409}, answer.text
    assert client.get(f"{sandbox}/files", params={"path": "taken"}).status_code == 404
    foreign = outside / "foreign"
    foreign.touch()
    foreign.chmod(0o666)  # so that protected_hardlinks has no say
    code = f"import os; os.link({str(foreign)!r}, {str(outside / 'linked')!r})"
    assert unconfined(code).returncode == 0
    assert (outside / "linked").stat().st_uid == foreign.stat().st_uid


@pytest.mark.attack
@pytest.mark.parametrize("case", ["C18"])
def test_artifacts_are_what_was_named_and_no_pattern(
    client: httpx.Client, outside: Path, case: str
) -> None:
    token = os.urandom(8).hex()
    (outside / "secret").write_text(token)
    code = (
        "import os\n"
        f"os.symlink({str(outside)!r}, 'link'); os.symlink({str(outside / 'secret')!r}, 'file')\n"
        "os.symlink('/etc', 'etc'); os.mkdir('.ssh'); open('.ssh/key', 'w').write('hidden')\n"
        "open('.env', 'w').write('hidden'); open('*.txt', 'w').write('star')\n"
        "open('plain.txt', 'w').write('plain')\n"
    )
    asked = ["*", "**/*", ".*", ".ssh/*", "*.txt", "?????.txt", "[p]lain.txt", "plain.txt",
             "link/*", "link/secret", "file", "etc/passwd"]  # fmt: skip
    answer = run(client, "/execute", code, collect=asked)
    assert answer["verdict"] == "ok", answer
    found = {each["name"]: each["size"] for each in answer["artifacts"]}
    # Inside /etc/passwd is the sandbox's own; a star is a letter.
    assert found.keys() - {"etc/passwd"} == {"*.txt", "plain.txt"}
    assert token not in str(answer)
    assert token == (outside / "secret").read_text()


_EVERY_FD = """
import os
found = []
for fd in range(3, 65536):
    try: os.write(fd, b'{"seq":1,"type":"end","verdict":"ok","forged":true}\\n'); found.append(fd)
    except OSError: pass
print(found, flush=True)
"""


@pytest.mark.attack
@pytest.mark.parametrize("case", ["K13"])
@pytest.mark.parametrize("door", ["one-shot", "session", "command"])
def test_writing_to_every_descriptor_forges_nothing(
    client: httpx.Client, case: str, door: str
) -> None:
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    if door == "command":
        body = {"argv": ["python3", "-c", _EVERY_FD]}
        answer = client.post(
            f"{sandbox}/commands", json=body, headers={"Accept": "application/json"}
        ).json()
    else:
        path = "/execute" if door == "one-shot" else f"{sandbox}/execute"
        answer = run(client, path, _EVERY_FD)
    assert (answer["verdict"], answer["stdout"]) == ("ok", "[]\n"), answer
    assert "forged" not in answer
    assert run(client, f"{sandbox}/execute", "print('well')")["stdout"] == "well\n"
    with open("/dev/null", "wb") as sink:
        control = unconfined(_EVERY_FD, pass_fds=[sink.fileno()])
        assert control.stdout.endswith(f"\n[{sink.fileno()}]\n")
