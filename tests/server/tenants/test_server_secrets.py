"""Secrets of a tenant: set over HTTP and from the command line, used by name, never read back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cellwall
from cellwall.apps.cli.commands import app_of
from cellwall.model.errors import CellwallError, NotFound, UsageError
from cellwall.model.secret import Secret
from cellwall.server.secrets.vault import Vault
from cellwall.store.store import Store
from kit import command_line
from kit.outside.name_server import NameServer
from kit.outside.servers import OUTSIDE, WebServer
from kit.outside.world import certificate
from kit.servers import (
    ALICE,
    MANAGER,
    Server,
    configuration,
    error_of,
    new_sandbox,
    run_cell,
    start,
)
from kit.stores import with_store

pytestmark = pytest.mark.root

VALUE = "sk-proj-valueThatIsInNoFileOfTheServer4711"
_ASK = """
import os, urllib.request
request = urllib.request.Request({url!r}, headers={{"X-Key": os.environ["API_KEY"]}})
print(urllib.request.urlopen(request, timeout=10).status, os.environ["API_KEY"])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
def web(folder: Path) -> Iterator[WebServer]:
    with WebServer(certificate(folder, "web.test")) as made:
        yield made


@pytest.fixture(scope="module")
def server(folder: Path, web: WebServer) -> Iterator[Server]:
    del web  # its certificate is in the folder
    with NameServer({"web.test": [OUTSIDE]}) as names:
        engine = (
            "[engine]\nnetwork_addresses = ['127.0.1.0/24']\n"
            f"name_servers = ['{names.address}']\n"
            f"network_authorities = '{folder}/certificate.pem'"
        )
        made = start(folder, "--port", "0", config=configuration(engine))
        yield made
        made.stop()


def _secrets(folder: Path, *words: str, stdin: str = "") -> tuple[int, str]:
    """Run `cellwall secrets` as the operator of that server would."""
    environ = {"CELLWALL_STATE_DIR": str(folder / "state"), "MY_KEY": VALUE}
    app = app_of(["secrets"])
    result = CliRunner().invoke(app, ["secrets", *words], input=stdin, env=environ)
    if isinstance(result.exception, CellwallError):
        return 1, str(result.exception)
    return result.exit_code, result.output


def _body(port: int) -> dict[str, object]:
    return {"value": VALUE, "hosts": [f"web.test:{port}"]}


def test_a_secret_is_set_used_listed_and_removed(server: Server, web: WebServer) -> None:
    client = server.client(MANAGER)
    made = client.put("/secrets/API_KEY", json=_body(web.port))
    assert made.status_code == 200, made.text
    listed = client.get("/secrets").json()["secrets"]
    assert listed == [made.json()]
    assert (listed[0]["name"], listed[0]["hosts"]) == ("API_KEY", [f"web.test:{web.port}"])
    rules = {"network": [f"web.test:{web.port}"], "secrets": ["API_KEY"]}
    code = _ASK.format(url=f"https://web.test:{web.port}/used")
    place = f"/sandboxes/{new_sandbox(client, **rules)}"
    in_sandbox = run_cell(client, place, code)
    alone = client.post("/execute", json={"code": code, **rules}).json()
    for answer in (in_sandbox, alone):
        assert answer["stdout"].startswith("200 sk-proj-"), answer
    assert [each[2]["X-Key"] for each in web.requests[-2:]] == [VALUE, VALUE]
    assert client.delete("/secrets/API_KEY").status_code == 200
    assert client.get("/secrets").json() == {"secrets": []}
    assert error_of(client.post("/sandboxes", json=rules))["code"] == "not_found"
    for text in (made.text, json.dumps(listed), json.dumps(in_sandbox), json.dumps(alone)):
        assert VALUE not in text


def test_the_command_line_names_a_secret_of_the_server(server: Server, web: WebServer) -> None:
    server.client(MANAGER).put("/secrets/API_KEY", json=_body(web.port))
    environ = {"CELLWALL_URL": server.address, "CELLWALL_API_KEY": MANAGER}
    asked = ("--allow", f"web.test:{web.port}", "--secret", "API_KEY")
    made = command_line.start("sandbox", "create", *asked, **environ)
    assert made.returncode == 0, made.stderr
    code = _ASK.format(url=f"https://web.test:{web.port}/named")
    words = ("sandbox", "exec", made.stdout.strip(), "--", "python3", "-c", code)
    done = command_line.start(*words, **environ)
    assert done.stdout.startswith("200 sk-proj-"), done.stderr
    assert web.requests[-1][2]["X-Key"] == VALUE
    assert VALUE not in done.stdout + done.stderr
    unknown = command_line.start("sandbox", "create", "--secret", "OTHER", **environ)
    assert (unknown.returncode, "OTHER" in unknown.stderr) == (125, True)


def test_a_secret_is_its_tenants_own(server: Server, web: WebServer) -> None:
    server.client(MANAGER).put("/secrets/MINE", json=_body(web.port))
    rules = {"network": [f"web.test:{web.port}"], "secrets": ["MINE"]}
    client = server.client(ALICE)
    assert error_of(client.post("/sandboxes", json=rules))["code"] == "not_found"
    for answer in (
        client.get("/secrets"),
        client.put("/secrets/A", json=_body(web.port)),
        client.delete("/secrets/MINE"),
    ):
        assert error_of(answer)["code"] == "forbidden"


@pytest.mark.parametrize(
    "body",
    [
        {"value": VALUE, "hosts": []},
        {"value": VALUE},
        {"value": f"{VALUE}\n", "hosts": ["a.test"]},
        {"value": VALUE, "hosts": ["*.a.test"]},
        {"value": VALUE, "hosts": ["a.test"], "places": ["body"]},
        {"value": [VALUE], "hosts": ["a.test"]},
        {"value": VALUE, "hosts": ["a.test"], VALUE: 1},
    ],
)
def test_bad_input_is_refused_without_the_value(server: Server, body: dict[str, object]) -> None:
    answer = server.client(MANAGER).put("/secrets/BAD", json=body)
    assert answer.status_code == 400
    if VALUE not in body:  # a name of a field is repeated to who wrote it
        assert VALUE not in answer.text


def test_the_command_line_sets_what_the_sdk_uses(
    server: Server, web: WebServer, folder: Path
) -> None:
    host = f"web.test:{web.port}"
    words = ("--tenant", "alice", "--host", host)
    assert _secrets(folder, "set", "API_KEY", *words, "--from", "env:MY_KEY")[0] == 0
    assert _secrets(folder, "set", "BY_STDIN", *words, stdin=f"{VALUE}\n")[0] == 0
    status, listed = _secrets(folder, "ls", "--tenant", "alice", "--json")
    assert status == 0
    assert [each["name"] for each in json.loads(listed)] == ["API_KEY", "BY_STDIN"]
    assert VALUE not in listed
    status, why = _secrets(folder, "set", "NONE", "--tenant", "alice", stdin=VALUE)
    assert (status, "has no host" in why, VALUE in why) == (1, True, False)
    code = _ASK.format(url=f"https://web.test:{web.port}/sdk")
    with cellwall.connect(server.address, api_key=ALICE) as client:
        done = client.run(code, network=[host], secrets=["API_KEY"])
        assert done.stdout.startswith("200 sk-proj-"), done
        with client.Sandbox(network=[host], secrets=["API_KEY"]) as sandbox:
            assert sandbox.run(code).stdout.startswith("200 sk-proj-")
        with pytest.raises(UsageError, match="by name"):
            client.run(code, network=[host], secrets=[Secret("A", VALUE, hosts=[host])])
        later = client.submit(code, network=[host], secrets=["API_KEY"])
        assert later.result().stdout.startswith("200 sk-proj-")
    assert {each[2]["X-Key"] for each in web.requests[-3:]} == {VALUE}
    assert _secrets(folder, "rm", "API_KEY", "--tenant", "alice")[0] == 0
    assert _secrets(folder, "rm", "API_KEY", "--tenant", "alice")[0] == 1


def test_no_file_of_the_server_has_a_value(server: Server, folder: Path, web: WebServer) -> None:
    """The control: what is no secret, the name of its host, is found by the same search."""
    body = _body(web.port)
    server.client(MANAGER).put("/secrets/STORED", json=body)
    files = [each for each in folder.rglob("*") if each.is_file() and "templates" not in each.parts]
    assert folder / "state" / "secrets.key" in files
    content = {each: each.read_bytes() for each in files}
    assert [each for each, data in content.items() if VALUE.encode() in data] == []
    assert [each for each, data in content.items() if str(body["hosts"])[2:-2].encode() in data]


def test_a_vault_on_each_database(store_url: str, tmp_path: Path) -> None:
    secret = Secret("KEY", VALUE, hosts=["a.test"], places=["basic"])

    async def work(store: Store) -> None:
        vault = Vault(store, tmp_path)
        await vault.put("moss", Secret("KEY", f"{VALUE}-old", hosts=["a.test"]))
        await vault.put("moss", secret)
        (found,) = await vault.find("moss", ["KEY"])
        assert (found.reveal(), found.hosts, found.places) == (VALUE, secret.hosts, ("basic",))
        with pytest.raises(NotFound):
            await vault.find("fern", ["KEY"])
        actions = [json.loads(each.record)["action"] for each in await store.audit(0, 9)]
        assert actions == ["secret.set", "secret.set"]
        other = tmp_path / "other"
        other.mkdir()
        await asyncio.to_thread((other / "key").write_text, "00" * 32)
        (other / "key").chmod(0o600)
        with pytest.raises(UsageError, match="another key"):
            await Vault(store, tmp_path, str(other / "key")).find("moss", ["KEY"])

    with_store(store_url, work)
