"""An ordinary user's sandboxes have a network policy, too: the listeners are opened by a process
that enters the user's own namespaces, and the proxy has the user's id and no capability."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kit.outside.name_server import NameServer
from kit.outside.servers import HOST, OUTSIDE, Sink, WebServer
from kit.outside.world import certificate
from kit.unprivileged import SHARING_ITS_ID, OrdinaryUser

# The user builds its own template first: half a minute.
pytestmark = [pytest.mark.rootless, pytest.mark.attack, pytest.mark.timeout(180)]

_PROGRAM = """
import json, sys
from functools import partial
from cellwall import EngineSettings, Sandbox, Secret
from cellwall.embedded import Runner
from cellwall.engine.engine import Engine
from pathlib import Path

port, host, names = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
tls_port, authorities = int(sys.argv[4]), Path("authorities.pem").absolute()
authorities.write_text(sys.argv[5])
settings = EngineSettings(
    network="open", network_addresses=("127.0.1.0/24",), name_servers=(names,),
    network_authorities=str(authorities), pool_min=0, pool_max=0,
)
runner = Runner(partial(Engine, settings=settings))
get = '''
import urllib.request
def get(url):
    try: return urllib.request.urlopen(url, timeout=10).status
    except Exception as error: return getattr(error, "code", type(error).__name__)
'''
said = {}
with Sandbox(runner=runner, network=[f"web.test:{port}"]) as sandbox:
    sandbox.run(get)
    ask = lambda url: sandbox.run(f"print(get({url!r}))").stdout.strip()
    said["allowed"] = ask(f"http://web.test:{port}/")
    said["name"] = ask(f"http://other.test:{port}/")
    said["address"] = ask(f"http://128.0.0.1:{port}/")
    sandbox.set_network("open")
    said["host"] = ask(f"http://inner.test:{host}/")
    said["udp"] = sandbox.run(
        "import socket\\n"
        "try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 443))\\n"
        "except OSError as error: print(type(error).__name__)"
    ).stdout.strip()
    async def pid(engine): return engine.outside.proxy.pid
    number = runner.call(lambda engine, _put: pid(engine))
    said["status"] = Path(f"/proc/{number}/status").read_text()
secret = Secret("KEY", "a-value-of-an-ordinary-user", hosts=[f"web.test:{tls_port}"])
with Sandbox(runner=runner, network=[f"web.test:{tls_port}"], secrets=[secret]) as sandbox:
    sandbox.run(get)
    code = f"import os; print(get('https://web.test:{tls_port}/?k=' + os.environ['KEY']))"
    said["opened"] = sandbox.run(code).stdout.strip()
with Sandbox(runner=runner) as sandbox:
    sandbox.run(get)
    said["none"] = sandbox.run(f"print(get('http://web.test:{port}/'))").stdout.strip()
runner.close()
print(json.dumps(said))
"""


@pytest.mark.parametrize("before", ["", SHARING_ITS_ID], ids=["usual", "shared id"])
def test_an_ordinary_users_sandbox_reaches_what_its_policy_names(
    before: str, tmp_path: Path
) -> None:
    names = {"web.test": [OUTSIDE], "other.test": [OUTSIDE], "inner.test": [HOST]}
    with (
        OrdinaryUser() as user,
        WebServer() as web,
        WebServer(certificate(tmp_path, "web.test")) as tls_web,
        Sink(address=HOST) as host,
        NameServer(names) as server,
    ):
        words = [str(web.port), str(host.port), server.address, str(tls_web.port)]
        words.append((tmp_path / "certificate.pem").read_text(encoding="ascii"))
        done = user.run(before + _PROGRAM, *words, timeout_s=150)
        assert done.code == 0, done.stderr
        said = json.loads(done.stdout)
        assert host.connections == 0
        assert len(web.requests) == 1
        assert [each[1] for each in tls_web.requests] == ["/?k=a-value-of-an-ordinary-user"]
        uid = user.uid
    status = dict(line.split(":\t", 1) for line in said.pop("status").splitlines() if ":\t" in line)
    assert set(status["Uid"].split()) == {str(uid)}
    assert int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert said == {
        "allowed": "200",
        "name": "URLError",
        "address": "403",
        "host": "URLError",
        "udp": "PermissionError",
        "opened": "200",
        "none": "URLError",
    }
