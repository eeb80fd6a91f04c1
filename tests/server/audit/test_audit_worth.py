"""What the audit is worth when somebody has the store, and what is left of it after retention.

On both kinds of store. A chain that nobody touched is the control of each damage.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from cellwall.server.audit.chain import sealed
from cellwall.server.audit.writer import Audit, server_entry
from cellwall.server.core.settings import ServerSettings
from cellwall.server.observability.observer import Observer
from cellwall.server.observability.redaction import Redactor
from cellwall.store.store import Store
from kit.server.audit_stores import Kept, cellwall
from kit.server.crashes import wait_until
from kit.servers import ADMIN, Server, configuration, new_sandbox, start

pytestmark = pytest.mark.timeout(180)  # servers and commands, each of which starts an interpreter
_NOTICED_S = 2.0
"""The journal takes writes until the database has refused one, a tenth of a second later; a fast
machine does some hundreds until then."""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """The store of a server that has ended: start, stop, and two records for each execution."""
    folder = tmp_path_factory.mktemp("kept")
    made = empty(request, folder)
    server = serve(made)
    client = server.client()
    for _ in range(12):
        client.post("/execute", json={"code": "1"}).raise_for_status()
    assert server.stop() == 0
    return made


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder}/state/server/cellwall.db"


def empty(request: pytest.FixtureRequest, folder: Path) -> Kept:
    postgres, url = None, url_in(folder)
    if request.param == "postgresql":
        postgres = request.getfixturevalue("postgres")
        url = postgres.database()
    return Kept(folder / "state", folder / "anchors.log", postgres, url)


def serve(kept: Kept, **more: object) -> Server:
    given: dict[str, object] = {"audit_anchor": str(kept.anchors), "audit_anchor_s": 0.2, **more}
    config = configuration(warm=[], store=kept.url, **given)
    return start(kept.folder.parent, "--port", "0", config=config)


def test_an_untouched_audit_is_whole_and_anchored(kept: Kept) -> None:
    done = kept.cellwall("verify", "--anchor", kept.anchors, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert report["whole"]
    assert (report["records"], report["removed"]) == (26, 0)
    assert report["anchors"] == len(kept.anchors.read_text().splitlines()) >= 2


@pytest.mark.parametrize(
    ("damage", "first"),
    [
        ("UPDATE audit SET record = replace(record, 'alice', 'mallo') WHERE seq = 7", 7),
        ("UPDATE audit SET hash = ZEROS WHERE seq = 7", 7),
        ("DELETE FROM audit WHERE seq = 7", 7),
        ("DELETE FROM audit WHERE seq > 20", 21),
        ("DELETE FROM audit WHERE seq < 7", 1),
        ("DELETE FROM audit", 1),
        ("UPDATE audit SET seq = seq + 1000 WHERE seq IN (7, 8);"
         "UPDATE audit SET seq = 8 WHERE seq = 1007;"
         "UPDATE audit SET seq = 7 WHERE seq = 1008", 7),
    ],
)  # fmt: skip
def test_damage_is_found_at_its_place(kept: Kept, tmp_path: Path, damage: str, first: int) -> None:
    """FI-35: edited, removed, reordered, truncated; by somebody who has the database."""
    copy = kept.copy(tmp_path)
    copy.sql(damage.replace("ZEROS", copy.blob(bytes(32))))
    done = copy.cellwall("verify", "--anchor", kept.anchors, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert not report["whole"]
    assert report["faults"][0]["record"] == first


def test_an_end_made_anew_is_found_by_the_anchor(kept: Kept, tmp_path: Path) -> None:
    """FI-35: cut off, then appended to again with good hashes."""
    copy = kept.copy(tmp_path)
    copy.sql("DELETE FROM audit WHERE seq > 20")
    head = bytes.fromhex(copy.sql("SELECT hex(hash) FROM audit WHERE seq = 20"))
    for seq in range(21, 30):
        row = sealed(server_entry("execution.accept", tenant="mallory"))(seq, head)
        values = f"{row.seq}, {copy.blob(row.record)}, {copy.blob(row.hash)}"
        copy.sql(f"INSERT INTO audit VALUES ({values})")
        head = row.hash
    assert copy.cellwall("verify").returncode == 0  # the control: the chain itself is fine
    done = copy.cellwall("verify", "--anchor", kept.anchors)
    assert done.returncode == 1
    assert "not the record that was anchored" in done.stdout


def test_export_into_no_directory_is_refused(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "none", tmp_path / "file", tmp_path / "file" / "none"):
        done = kept.cellwall("export", "--rotate", str(place))
        assert (done.returncode, "there is no such directory; make" in done.stderr) == (125, True)
        assert "Traceback" not in done.stderr


def test_exports_rotate_link_and_verify_without_a_store(kept: Kept, tmp_path: Path) -> None:
    """API-41."""
    archive = tmp_path / "archive"
    archive.mkdir()
    copy = kept.copy(tmp_path / "copy")
    copy.sql("DELETE FROM audit WHERE seq > 10")
    assert copy.cellwall("export", "--rotate", archive).returncode == 0
    assert kept.cellwall("export", "--rotate", archive).returncode == 0
    assert "nothing new" in kept.cellwall("export", "--rotate", archive).stderr
    files = sorted(archive.iterdir())
    assert [file.name for file in files] == ["audit-000000000001.jsonl", "audit-000000000011.jsonl"]
    nowhere = tmp_path / "nowhere"
    done = cellwall(nowhere, "verify", *files, "--anchor", kept.anchors)
    assert done.returncode == 0, done.stdout
    assert "26 records (1 to 26): whole" in done.stdout
    assert cellwall(nowhere, "verify", files[1]).returncode == 0  # a later file alone
    files[0].write_text("".join(files[0].read_text().splitlines(keepends=True)[:9]))
    done = cellwall(nowhere, "verify", *files)
    assert done.returncode == 1
    assert "record 10: 1 missing" in done.stdout
    assert not nowhere.exists()


def test_an_export_does_not_go_on_behind_another_chain(kept: Kept, tmp_path: Path) -> None:
    """A store that was restored: the folder holds more than it, or something else."""
    archive = tmp_path / "archive"
    archive.mkdir()
    assert kept.cellwall("export", "--rotate", archive).returncode == 0
    restored = kept.copy(tmp_path / "copy")
    restored.sql("DELETE FROM audit WHERE seq > 20")
    done = restored.cellwall("export", "--rotate", archive)
    assert done.returncode == 125
    assert "a backup was restored" in done.stderr
    assert len(list(archive.iterdir())) == 1


def test_tail_shows_records_on_one_line_each(kept: Kept) -> None:
    lines = kept.cellwall("tail", "-n", "3").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["24", "25", "26"]
    assert "server.stop" in lines[2]
    parsed = [json.loads(line) for line in kept.cellwall("tail", "--json").stdout.splitlines()]
    assert parsed[-1]["action"] == "server.stop"


def test_a_missing_store_is_said_and_none_is_made(tmp_path: Path) -> None:
    done = cellwall(tmp_path, "verify")
    assert done.returncode == 125
    assert "there is no store" in done.stderr
    assert not (tmp_path / "server").exists()


@pytest.mark.parametrize("request_of", ["write", "execute"])
def test_without_a_record_nothing_happens_in_either_store(
    kept: Kept, tmp_path: Path, request_of: str
) -> None:
    """L7: somebody took the audit away under a running server; when it is back all is well.

    What was allowed until that was noticed has its record, too: it was on disk in the journal.
    """
    copy = kept.copy(tmp_path / "state")
    server = serve(copy)
    try:
        client = server.client()
        path = f"/sandboxes/{new_sandbox(client)}/files"
        name = {"path": "a.txt"}
        client.put(path, params=name, content=b"before").raise_for_status()
        copy.sql("ALTER TABLE audit RENAME TO audit_away")
        done, allowed, is_refused = b"before", 0, False
        until = time.monotonic() + _NOTICED_S
        while not is_refused:  # what is on disk in the journal may still have its effect
            content = b"%d" % allowed
            if request_of == "write":
                answer = client.put(path, params=name, content=content)
            else:
                answer = client.post("/execute", json={"code": "1"})
            is_refused = answer.status_code >= 500
            if not is_refused:
                done, allowed = content, allowed + 1
            assert time.monotonic() < until
        copy.sql("ALTER TABLE audit_away RENAME TO audit")
        if request_of == "write":
            assert client.get(path, params=name).content == done
        wait_until(lambda: client.put(path, params=name, content=b"again").status_code < 300)
    finally:
        server.stop()
    assert copy.cellwall("verify").returncode == 0
    action = "file.write" if request_of == "write" else "execution.accept"
    found = copy.cellwall("tail", "--json", "-n", 10_000).stdout.count(f'"action":"{action}"')
    assert found >= allowed


# -- retention -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def trimmed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kept]:
    """A store whose first four records were exported and let go of, with four behind them."""
    made = empty(request, tmp_path_factory.mktemp("trimmed"))
    made.folder.mkdir()
    asyncio.run(auditing(made, [lambda audit: audit.before(ACCEPT)] * 3))
    archive(made).mkdir()
    assert made.cellwall("export", "--rotate", archive(made)).returncode == 0
    soon = time.time() + 1
    accept, trim = (lambda audit: audit.before(ACCEPT)), (lambda audit: audit.trim(soon))
    asyncio.run(auditing(made, [accept, trim, accept]))
    yield made
    made.remove()


ACCEPT = server_entry("execution.accept", tenant="alice")


async def auditing(kept: Kept, steps: Sequence[Callable[[Audit], Awaitable[None]]]) -> None:
    """Do the steps with an audit as a server has one; it ends with the record of its stop."""
    settings = ServerSettings(audit_anchor=str(kept.anchors), audit_retention_s=0)
    store = await Store.open(kept.url)
    audit = Audit(store, settings, Observer(settings, Redactor()))
    for step in steps:
        await step(audit)
    await audit.aclose()
    await store.aclose()


def archive(kept: Kept) -> Path:
    return kept.folder.parent / "archive"


def first_of(client: httpx.Client) -> int:
    return int(client.get("/audit", params={"after": 0, "limit": 1}).json()["records"][0]["seq"])


def test_server_lets_go_of_what_was_exported_and_of_nothing_else(tmp_path: Path) -> None:
    made = Kept(tmp_path / "state", tmp_path / "anchors.log", None, url_in(tmp_path))
    server = serve(made, audit_retention_s=0, retention_s=0)
    client = server.client(ADMIN)
    try:
        for _ in range(20):  # it looks each tenth of a second
            client.post("/execute", json={"code": "1"}).raise_for_status()
        assert first_of(client) == 1
        archive(made).mkdir()
        assert made.cellwall("export", "--rotate", archive(made)).returncode == 0
        while first_of(client) == 1:  # the test's own time limit ends it
            client.post("/execute", json={"code": "1"}).raise_for_status()
        assert first_of(client) > 40
    finally:
        server.stop()
    assert made.cellwall("verify", "--anchor", made.anchors).returncode == 0


def test_nothing_goes_that_was_not_exported(store_url: str, tmp_path: Path) -> None:
    made = Kept(tmp_path / "state", tmp_path / "anchors.log", None, store_url)
    soon = time.time() + 1
    accept, trim = (lambda audit: audit.before(ACCEPT)), (lambda audit: audit.trim(soon))
    asyncio.run(auditing(made, [accept, trim, accept, trim]))
    found = json.loads(made.cellwall("verify", "--json").stdout)
    assert (found["whole"], found["first"], found["records"]) == (True, 1, 3)


def test_nothing_goes_that_could_not_be_anchored(store_url: str, tmp_path: Path) -> None:
    """What went is proved by the anchor alone; a directory is where that should be written."""
    made = Kept(tmp_path / "state", tmp_path / "anchors.log", None, store_url)
    soon = time.time() + 1
    accept, trim = (lambda audit: audit.before(ACCEPT)), (lambda audit: audit.trim(soon))
    asyncio.run(auditing(made, [accept, accept]))
    archive(made).mkdir()
    assert made.cellwall("export", "--rotate", archive(made)).returncode == 0
    made.anchors.unlink(missing_ok=True)
    made.anchors.mkdir()
    asyncio.run(auditing(made, [accept, trim]))
    assert json.loads(made.cellwall("verify", "--json").stdout)["first"] == 1
    made.anchors.rmdir()
    asyncio.run(auditing(made, [trim]))  # the control
    assert json.loads(made.cellwall("verify", "--json").stdout)["first"] > 1


def test_what_is_left_says_where_it_begins(trimmed: Kept) -> None:
    done = trimmed.cellwall("verify", "--anchor", trimmed.anchors)
    assert done.returncode == 0, done.stdout
    assert "records 1 to 4 were exported, and removed at 20" in done.stdout
    found = json.loads(trimmed.cellwall("verify", "--json", "--anchor", trimmed.anchors).stdout)
    assert (found["whole"], found["first"], found["removed"]) == (True, 5, 4)
    assert found["anchors"] >= 2


def test_exported_files_go_on_across_a_cut(trimmed: Kept, tmp_path: Path) -> None:
    assert trimmed.cellwall("export", "--rotate", archive(trimmed)).returncode == 0
    files = sorted(archive(trimmed).iterdir())
    assert [file.name for file in files] == ["audit-000000000001.jsonl", "audit-000000000005.jsonl"]
    done = cellwall(tmp_path, "verify", *files, "--anchor", trimmed.anchors)
    assert done.returncode == 0, done.stdout
    assert "(1 to " in done.stdout


@pytest.mark.parametrize(
    ("damage", "first"),
    [
        ("DELETE FROM audit WHERE seq < 6", 5),
        ("UPDATE audit SET record = replace(record, 'alice', 'mallo') WHERE seq = 7", 7),
        ("DELETE FROM audit WHERE seq < 5 OR seq > 7", 8),
    ],
)
def test_damage_behind_a_cut_is_found(
    trimmed: Kept, tmp_path: Path, damage: str, first: int
) -> None:
    copy = trimmed.copy(tmp_path)
    copy.sql(damage)
    done = copy.cellwall("verify", "--anchor", trimmed.anchors, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["faults"][0]["record"] == first
