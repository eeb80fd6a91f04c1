"""Secrets: the value reaches the hosts it is for, and the sandbox has a placeholder.

With a witness outside that records what it got.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import Sandbox
from cellwall.model.errors import UsageError
from cellwall.model.secret import Secret
from conftest import require_command
from kit.outside import libraries
from kit.outside.secrets import ASK, VALUE, Mirror
from kit.outside.servers import WebServer
from kit.outside.world import World, certificate
from kit.places import ROOT

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def mirror(any_outside: World) -> Iterator[Mirror]:
    """A mirror with the certificate that the world's engine trusts, for web.test, other.test."""
    with Mirror(any_outside.tls) as made:
        yield made


@pytest.fixture(scope="module")
def jail_mirror(outside: World) -> Iterator[Mirror]:
    """The same for the jail alone."""
    with Mirror(outside.tls) as made:
        yield made


def secret_for(port: int, *hosts: str, **options: Any) -> Secret:
    return Secret("API_KEY", VALUE, hosts=[f"web.test:{port}", *hosts], **options)


def said(sandbox: Sandbox, *calls: str) -> list[str]:
    """Run each expression inside; return what it gave."""
    lines = f"{ASK}\nprint(json.dumps([{', '.join(calls)}]))"
    done = sandbox.run(lines)
    assert done.outcome.verdict == "ok", (done.stderr, done.error)
    found: list[str] = json.loads(done.stdout)
    assert VALUE not in repr(done)
    return found


def test_the_value_reaches_its_host_in_header_query_and_basic(
    any_outside: World, mirror: Mirror
) -> None:
    port = mirror.port
    secret = secret_for(port)
    with any_outside.sandbox([f"web.test:{port}"], secrets=[secret]) as sandbox:
        key, header, query, basic = said(
            sandbox,
            "KEY",
            f"ask('https://web.test:{port}/h', {{'X-Key': f'Bearer {{KEY}}'}})",
            f"ask('https://web.test:{port}/q?a=1&key=' + KEY)",
            f"ask('https://web.test:{port}/b', {{'Authorization': 'Basic ' + "
            "base64.b64encode(f'me:{KEY}'.encode()).decode()})",
        )
    assert key == secret.placeholder
    assert [each[:3] for each in (header, query, basic)] == ["200"] * 3
    by_header, by_query, by_basic = mirror.requests[-3:]
    assert by_header[2]["X-Key"] == f"Bearer {VALUE}"
    assert by_query[1] == f"/q?a=1&key={VALUE}"
    assert base64.b64decode(by_basic[2]["Authorization"].split()[1]) == f"me:{VALUE}".encode()
    # What the server repeated came back as the placeholder, in fields and bodies.
    for text in (header, query):
        assert secret.placeholder in text
    assert header.count(secret.placeholder) == 2
    for text in (header, query, basic):
        assert VALUE not in text
    assert base64.b64encode(f"me:{VALUE}".encode()).decode() not in basic


def test_a_one_shot_has_its_own_secrets(any_outside: World, mirror: Mirror) -> None:
    port = mirror.port
    code = f"{ASK}\nprint(ask('https://web.test:{port}/one', {{'X-Key': KEY}}))"
    found = any_outside.run(code, [f"web.test:{port}"], secrets=[secret_for(port)])
    assert found.startswith("200")
    assert VALUE not in found
    assert mirror.requests[-1][2]["X-Key"] == VALUE


def test_no_value_goes_into_a_body_or_a_path(any_outside: World, mirror: Mirror) -> None:
    port = mirror.port
    with any_outside.sandbox([f"web.test:{port}"], secrets=[secret_for(port)]) as sandbox:
        body, path = said(
            sandbox,
            f"ask('https://web.test:{port}/body', data=KEY.encode())",
            f"ask('https://web.test:{port}/' + KEY)",
        )
        log = sandbox.network_log()
    assert body[:3] == path[:3] == "200"
    assert VALUE not in mirror.requests[-1][1]
    assert VALUE not in body
    withheld = [each["secrets_withheld"] for each in log if each["event"] == "close"]
    assert withheld == [[], ["API_KEY"]]


def test_another_host_gets_the_placeholder_and_it_is_on_record(
    any_outside: World, mirror: Mirror
) -> None:
    """The same server under another name, with a rule that opens its TLS, and without TLS."""
    port, plain = mirror.port, any_outside.web.port
    secret = secret_for(port)
    rules = [
        f"web.test:{port}",
        {"host": "other.test", "ports": [port], "methods": ["GET"]},
        f"web.test:{plain}",
    ]
    with any_outside.sandbox(rules, secrets=[secret]) as sandbox:
        other, http, own = said(
            sandbox,
            f"ask('https://other.test:{port}/', {{'X-Key': KEY}})",
            f"ask('http://web.test:{plain}/', {{'X-Key': KEY}})",
            f"ask('https://web.test:{port}/control', {{'X-Key': KEY}})",
        )
        log = sandbox.network_log()
    assert other[:3] == http[:3] == own[:3] == "200"
    assert mirror.requests[-2][2]["X-Key"] == secret.placeholder
    assert any_outside.web.requests[-1][2]["X-Key"] == secret.placeholder
    assert mirror.requests[-1][2]["X-Key"] == VALUE
    closed = [each for each in log if each["event"] == "close"]
    assert [each["secrets_withheld"] for each in closed] == [["API_KEY"], ["API_KEY"], []]
    assert [each["secrets"] for each in closed] == [[], [], ["API_KEY"]]
    assert VALUE not in json.dumps([log, any_outside.records])


def test_a_redirect_takes_the_value_nowhere(any_outside: World, mirror: Mirror) -> None:
    port = mirror.port
    secret = secret_for(port)
    mirror.redirects["/away"] = f"https://other.test:{port}/landed"
    rules = [f"web.test:{port}", {"host": "other.test", "ports": [port], "paths": ["/"]}]
    with any_outside.sandbox(rules, secrets=[secret]) as sandbox:
        (found,) = said(sandbox, f"ask('https://web.test:{port}/away', {{'X-Key': KEY}})")
    assert found[:3] == "200"
    first, second = mirror.requests[-2:]
    assert (first[1], first[2]["X-Key"]) == ("/away", VALUE)
    assert (second[1], second[2]["X-Key"]) == ("/landed", secret.placeholder)


def test_plain_http_gets_a_value_only_where_that_was_said(any_outside: World) -> None:
    port = any_outside.web.port
    for hosts, expected in (([f"http://web.test:{port}"], VALUE), ([f"web.test:{port}"], "")):
        secret = Secret("API_KEY", VALUE, hosts=hosts)
        with any_outside.sandbox([f"web.test:{port}"], secrets=[secret]) as sandbox:
            (found,) = said(sandbox, f"ask('http://web.test:{port}/', {{'X-Key': KEY}})")
        assert found[:3] == "200"
        got = any_outside.web.requests[-1][2]["X-Key"]
        assert got == (expected or secret.placeholder)


def test_a_compressed_answer_is_refused_with_the_reason(any_outside: World, mirror: Mirror) -> None:
    port = mirror.port
    with any_outside.sandbox([f"web.test:{port}"], secrets=[secret_for(port)]) as sandbox:
        (found,) = said(sandbox, f"ask('https://web.test:{port}/compressed', {{'X-Key': KEY}})")
    assert found.startswith("502")
    assert "cannot be searched" in found


def test_a_server_whose_certificate_is_wrong_gets_nothing(any_outside: World) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tls = certificate(Path(folder), "web.test")
        with Mirror(tls) as impostor:
            port = impostor.port
            with any_outside.sandbox([f"web.test:{port}"], secrets=[secret_for(port)]) as sandbox:
                (found,) = said(sandbox, f"ask('https://web.test:{port}/', {{'X-Key': KEY}})")
                refused = [each for each in sandbox.network_log() if each["event"] == "refused"]
            assert impostor.requests == []
    assert found.startswith("502")
    assert "its certificate is wrong: self-signed certificate" in found
    assert "certificate is wrong" in refused[-1]["rule"]


def test_tls_that_no_rule_opens_stays_as_it_is(any_outside: World, mirror: Mirror) -> None:
    port, other = mirror.port, any_outside.tls_web.port
    code = (
        "import ssl\ndef seen(port): return ssl.get_server_certificate(('web.test', port))\n"
        f"print(json.dumps([seen({port}), seen({other})]))"
    )
    rules = [f"web.test:{port}", f"web.test:{other}"]
    with any_outside.sandbox(rules, secrets=[secret_for(port)]) as sandbox:
        opened, kept = json.loads(sandbox.run(ASK + code).stdout)
    own = "".join(any_outside.authority.split())
    assert "".join(kept.split()) == own
    assert "".join(opened.split()) != own


def test_methods_and_paths_are_looked_at_in_tls(any_outside: World, mirror: Mirror) -> None:
    port = mirror.port
    rule = {"host": "web.test", "ports": [port], "methods": ["GET"], "paths": ["/v1/"]}
    url = f"https://web.test:{port}"
    code = ASK.replace('os.environ["API_KEY"]', "''")
    with any_outside.sandbox([rule]) as sandbox:
        done = sandbox.run(
            f"{code}\nprint(json.dumps([ask('{url}/v1/a'), ask('{url}/v1/a', data=b'x'), "
            f"ask('{url}/v2/a'), ask('{url}/v1/a', {{'Host': 'other.test'}})]))"
        )
    fits, by_method, by_path, by_host = json.loads(done.stdout)
    assert fits[:3] == "200"
    assert by_method.startswith("403")
    assert "no rule allows POST /v1/a" in by_method
    assert by_path.startswith("403")
    assert by_host.startswith("403")
    assert "names another server in its Host header" in by_host


_RAW = """
import socket, ssl
def raw(port, name, said, **versions):
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    for each, version in versions.items():
        setattr(context, each, version)
    try:
        with socket.create_connection(("web.test", port), 5) as held:
            with context.wrap_socket(held, server_hostname=name) as over:
                over.sendall(said)
                data, found = b"", over.getpeercert()["subjectAltName"]
                while piece := over.recv(4096):
                    data += piece
                return f"{found} {data.decode('latin-1')}"
    except OSError as error:
        return f"{type(error).__name__}: {error}"
"""


def test_an_opened_connection_is_for_the_allowed_name_alone(
    any_outside: World, mirror: Mirror
) -> None:
    port, before = mirror.port, len(mirror.requests)
    head = "b'GET /raw HTTP/1.1\\r\\nHost: web.test\\r\\nConnection: close\\r\\n"
    plain = f"{head}\\r\\n'"
    lengths = f"{head}Content-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n'"
    rules = [f"web.test:{port}", f"other.test:{port}"]
    with any_outside.sandbox(rules, secrets=[secret_for(port)]) as sandbox:
        sandbox.run(_RAW)
        named, unnamed, old, other, two = said(
            sandbox,
            f"raw({port}, 'web.test', {plain})",
            f"raw({port}, None, {plain})",
            f"raw({port}, 'web.test', {plain}, maximum_version=ssl.TLSVersion.TLSv1_2)",
            f"raw({port}, 'other.test', {plain})",
            f"raw({port}, 'web.test', {lengths})",
        )
    for found in (named, unnamed, old):
        assert found.startswith("(('DNS', 'web.test'),) HTTP/1.1 200"), found
    assert "access denied" in other.lower()
    assert "HTTP/1.1 400" in two
    assert len(mirror.requests) == before + 3


def test_a_session_with_a_server_goes_on_within_one_sandbox(
    outside: World, jail_mirror: Mirror
) -> None:
    port = jail_mirror.port
    call = f"ask('https://web.test:{port}/', {{'X-Key': KEY}})"
    for _ in range(2):  # the second sandbox begins anew
        before = jail_mirror.resumed
        with outside.sandbox([f"web.test:{port}"], secrets=[secret_for(port)]) as sandbox:
            assert [each[:3] for each in said(sandbox, call, call, call)] == ["200"] * 3
        assert jail_mirror.resumed == before + 2
        assert jail_mirror.requests[-1][2]["X-Key"] == VALUE


def test_much_passes_through_an_opened_connection_as_it_is(outside: World) -> None:
    """Both ways, in many pieces, and the value wherever the server puts it."""
    page = os.urandom(1 << 20) * 6 + VALUE.encode() + b"x" * 70_000 + VALUE.encode()
    with WebServer(outside.tls, pages={"/page": page}) as server:
        port = server.port
        secret = secret_for(port)
        with outside.sandbox([f"web.test:{port}"], secrets=[secret]) as sandbox:
            done = sandbox.run(
                f"{ASK}\nimport hashlib\n"
                "open_url = urllib.request.urlopen\n"
                f"data = open_url('https://web.test:{port}/page', timeout=20).read()\n"
                f"up = urllib.request.Request('https://web.test:{port}/up', b'y' * (5 << 20))\n"
                "print(hashlib.sha256(data).hexdigest(), open_url(up).read().decode())"
            )
    hidden = page.replace(VALUE.encode(), secret.placeholder.encode())
    assert done.stdout.split() == [hashlib.sha256(hidden).hexdigest(), "POST", "/up", f"{5 << 20}"]


def test_bad_input_is_refused_before_anything_starts(any_outside: World) -> None:
    for secrets, why in (
        ([{"name": "API_KEY", "value": VALUE}], "API_KEY has no host"),
        ([Secret("API_KEY", VALUE, hosts=["elsewhere.test"])], "does not allow"),
    ):
        with pytest.raises(UsageError, match=why) as caught:
            any_outside.sandbox(["web.test"], secrets=secrets)
        assert VALUE not in repr(caught.value) + str(caught.value.remedy)
    with pytest.raises(UsageError, match="is in env as well"):
        any_outside.sandbox(["web.test"], secrets=[secret_for(443)], env={"API_KEY": "x"})


def test_trust_is_there_from_the_start_or_not_at_all(any_outside: World) -> None:
    rule = {"host": "web.test", "methods": ["GET"]}
    with any_outside.sandbox(["web.test"]) as sandbox:
        with pytest.raises(UsageError, match="made without trust"):
            sandbox.set_network([rule])
        assert str(sandbox.network) == "allow web.test"
        sandbox.set_network([rule | {"ports": [80]}])
    with any_outside.sandbox([rule]) as sandbox:
        sandbox.set_network([rule, "other.test"])
        assert sandbox.network.opens_tls


def test_a_new_proxy_has_a_new_authority_that_programs_trust(
    outside: World, jail_mirror: Mirror
) -> None:
    port = jail_mirror.port
    call = f"ask('https://web.test:{port}/', {{'X-Key': KEY}})"
    with outside.sandbox([f"web.test:{port}"], secrets=[secret_for(port)]) as sandbox:
        assert said(sandbox, call)[0][:3] == "200"
        pid = outside.runner.call(lambda engine, _put: _pid(engine))
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while not (found := said(sandbox, call)[0]).startswith("200"):
            assert time.monotonic() < deadline, found
        assert jail_mirror.requests[-1][2]["X-Key"] == VALUE


async def _pid(engine: Any) -> int:
    assert engine.outside.proxy.pid is not None
    return int(engine.outside.proxy.pid)


def test_the_documented_example_runs() -> None:
    path = ROOT / "docs" / "snippets" / "network" / "policy_with_a_secret.py"
    done = subprocess.run(
        [sys.executable, str(path)], check=False, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr


_FIND = '''
import os
def holds(path, needle):
    """Whether a file has the text; one that cannot be read has none to show."""
    try:
        with open(path, "rb") as file:
            tail = b""
            while piece := file.read(1 << 20):
                if needle in tail + piece:
                    return True
                tail = piece[-len(needle):]
    except OSError:
        pass
    return False

def found(needle):
    places = []
    for folder, folders, names in os.walk("/"):
        if folder == "/":
            folders[:] = [each for each in folders if each not in ("proc", "sys", "usr")]
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and holds(path, needle):
                places.append(path)
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            if holds(f"/proc/{pid}/{name}", needle):
                places.append(f"/proc/{pid}/{name}")
    return places
'''


def _space(pid: str) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:  # it has ended
        return 0


def _gvisors_with(needle: bytes) -> set[str]:
    """Return the gVisor sandboxes of this machine, by the pid of each, whose memory has a text.

    What is memory inside is one file of the host's, which has no name and many holes.
    """
    found = set()
    for each in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(FileNotFoundError):  # it was closed, or its process has ended
            if _is_gvisors(each) and _in_file(str(each), needle):
                found.add(each.parts[2])
    return found


def _is_gvisors(descriptor: Path) -> bool:
    try:
        return "runsc-memory" in os.readlink(descriptor)
    except PermissionError:  # such a process is not gVisor's, which root may look at
        return False


def _in_file(path: str, needle: bytes) -> bool:
    with open(path, "rb", 0) as file:
        first = last = 0
        while True:
            try:
                first = os.lseek(file.fileno(), last, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # no data behind the last hole
                    return False
                raise
            last = os.lseek(file.fileno(), first, os.SEEK_HOLE)
            if needle in os.pread(file.fileno(), last - first, first):
                return True


def _in_memory(space: int, needle: bytes) -> list[str]:
    """Return the mappings of a pid namespace's processes that have a text."""
    places = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if _space(pid) != space:
            continue
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                try:
                    memory.seek(start)
                    if needle in memory.read(end - start):
                        places.append(f"{pid} {line}")
                except (OSError, OverflowError, ValueError):
                    continue  # such as [vvar], which cannot be read
    return places


def _check_memory(runtime: str, sandbox: Sandbox, plain: str) -> None:
    """Check from the host that what has a plain variable in its memory has not the value."""
    if runtime == "gvisor":
        having = _gvisors_with(plain.encode())
        assert having
        assert not having & _gvisors_with(VALUE.encode())
        return
    space = int(sandbox.run("print(os.stat('/proc/self/ns/pid').st_ino)").stdout)
    assert _in_memory(space, plain.encode())
    assert _in_memory(space, VALUE.encode()) == []


def test_no_process_and_no_file_of_the_sandbox_has_the_value(
    any_outside: World, mirror: Mirror
) -> None:
    """A plain variable is the control: it is found by the same search."""
    port = mirror.port
    plain = f"a-plain-variable-that-code-may-see-{os.urandom(8).hex()}"
    given: dict[str, Any] = {"secrets": [secret_for(port)], "env": {"PLAIN": plain}}
    with any_outside.sandbox([f"web.test:{port}"], **given) as sandbox:
        found = said(
            sandbox,
            f"ask('https://web.test:{port}/', {{'X-Key': KEY}})",
            f"ask('https://web.test:{port}/?' + KEY)",
            "open('/tmp/plain', 'w').write(os.environ['PLAIN'])",
        )
        assert found[0][:3] == found[1][:3] == "200"
        assert mirror.requests[-1][1] == f"/?{VALUE}"
        # What it started with is in no memory of a context, but in the environment of a program.
        running = sandbox.commands.start("sleep 100")
        _check_memory(any_outside.runtime, sandbox, plain)
        sandbox.run(_FIND)
        # In halves, so that the search does not find itself.
        halves = f"({VALUE[:9]!r} + {VALUE[9:]!r}).encode()"
        done = sandbox.run(
            f"print(json.dumps([found({halves}), found(os.environ['PLAIN'].encode())]))",
            timeout=120,
        )
        of_secret, of_plain = json.loads(done.stdout)
        running.kill()
    assert of_secret == []
    assert [each for each in of_plain if each.endswith("tmp/plain")]
    assert [each for each in of_plain if each.endswith("environ")]


_ROOM = {"memory_mb": 2048, "processes": 200, "wall_s": 60, "cpu_s": 60, "open_files": 1024}
_PROGRAMS = {
    "curl": 'curl -sS -H "X-Key: $API_KEY" URL',
    "wget": 'wget -q -O - --header="X-Key: $API_KEY" URL',
    "node": 'node -e \'fetch("URL", {headers: {"X-Key": process.env.API_KEY}})'
    ".then(r => r.text()).then(t => process.stdout.write(t))'",
    "git": "git ls-remote URL 2>&1; true",
    "npm": "npm view something --registry URL --fetch-retries 0 2>&1; true",
    "java": "mkdir -p j && cat > j/A.java <<'END'\n"
    "import java.net.*; import java.net.http.*;\n"
    "class A { public static void main(String[] a) throws Exception {\n"
    " var r = HttpRequest.newBuilder(URI.create(a[0])).version(HttpClient.Version.HTTP_1_1)\n"
    '  .header("X-Key", System.getenv("API_KEY")).build();\n'
    " System.out.print(HttpClient.newHttpClient().send(r,\n"
    "  HttpResponse.BodyHandlers.ofString()).body()); } }\n"
    "END\njava j/A.java URL",
    "go": "mkdir -p g && cat > g/a.go <<'END'\n"
    'package main\nimport ("net/http"; "os"; "io")\n'
    'func main() { r, _ := http.NewRequest("GET", os.Args[1], nil)\n'
    ' r.Header.Set("X-Key", os.Getenv("API_KEY"))\n'
    " a, e := http.DefaultClient.Do(r); if e != nil { panic(e) }\n"
    " io.Copy(os.Stdout, a.Body) }\n"
    "END\nGOCACHE=$PWD/c GOPATH=$PWD/p go run g/a.go URL",
    "pip": "/usr/bin/python3 -m pip download --no-deps -d d "
    "--index-url URL/simple something 2>&1; true",
}
_ASKS_ITSELF = {"git", "npm", "pip"}
"""Programs that ask for paths of their own, without the header."""


@pytest.mark.parametrize("name", _PROGRAMS)
def test_programs_trust_the_sandboxs_authority_unmodified(
    outside: World, jail_mirror: Mirror, name: str
) -> None:
    require_command(name)
    port, before = jail_mirror.port, len(jail_mirror.requests)
    found = outside.run(
        _PROGRAMS[name].replace("URL", f"https://web.test:{port}/for-{name}"),
        [f"web.test:{port}"],
        language="bash",
        secrets=[secret_for(port)],
        limits=_ROOM,
        timeout=60,
    )
    asked = jail_mirror.requests[before:]
    assert asked, found
    assert f"/for-{name}" in asked[0][1]
    if name not in _ASKS_ITSELF:
        assert asked[0][2]["X-Key"] == VALUE
        assert VALUE not in found


@pytest.mark.parametrize("name", libraries.PROGRAMS)
def test_libraries_trust_the_sandboxs_authority_unmodified(
    outside: World, jail_mirror: Mirror, name: str
) -> None:
    port, before = jail_mirror.port, len(jail_mirror.requests)
    url = f"https://web.test:{port}/for-{name}"
    code = f"import os\nURL, HEADERS = {url!r}, {{'X-Key': os.environ['API_KEY']}}\n"
    outside.run(
        code + libraries.PROGRAMS[name],
        [f"web.test:{port}"],
        template="data",
        secrets=[secret_for(port)],
        limits=_ROOM,
        timeout=60,
    )
    (asked,) = jail_mirror.requests[before:]
    assert asked[1] == f"/for-{name}"
    assert asked[2]["X-Key"] == VALUE
