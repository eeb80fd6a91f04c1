"""What programs print, on its way through the API (group K), and what lands in logs (API-37)."""

from __future__ import annotations

import base64
import json
import time

import httpx
import pytest

from cellwall.server.observability.logs import escaped
from kit.servers import Server, lines_of, logged, new_sandbox

MIB = 1024 * 1024
STREAM = {"Accept": "application/x-ndjson"}


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client()


def execute(client: httpx.Client, code: str, **body: object) -> dict[str, object]:
    answer = client.post("/execute", json={"code": code, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True: os.write(1, b'x' * 65536)",  # K01, K03
        "import os\nwhile True: os.write(1, b'x' * 4096); os.write(2, b'y' * 4096)",  # K02
    ],
    ids=["stdout", "both"],
)
@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_endless_output_is_bounded(server: Server, code: str, accept: str) -> None:
    client = server.client()
    before = server.rss_bytes()
    answer = client.post("/execute", json={"code": code, "timeout": 2}, headers={"Accept": accept})
    assert len(answer.content) < 40 * MIB
    if accept == "application/json":
        body = answer.json()
        assert body["verdict"] in {"wall_time", "cpu_time"}
        assert len(body["stdout"]) == MIB
    else:
        assert lines_of(answer)[-1]["type"] == "end"
    assert server.rss_bytes() - before < 96 * MIB


def test_what_is_cut_is_counted(client: httpx.Client) -> None:
    answer = execute(client, "import os\nfor _ in range(160): os.write(1, b'x' * 65536)")
    assert answer["verdict"] == "output"
    assert answer["truncated"] == {"stdout": 9 * MIB, "stderr": 0, "display": 0}


def test_many_tiny_writes_are_few_events(server: Server) -> None:
    """K04."""
    client = server.client()
    before = server.rss_bytes()
    code = "import os\nfor _ in range(300_000): os.write(1, b'.')"
    began = time.monotonic()
    lines = lines_of(client.post("/execute", json={"code": code}, headers=STREAM))
    assert sum(len(line.get("text", "")) for line in lines) == 300_000
    assert len(lines) < 100_000
    assert server.rss_bytes() - before < 64 * MIB
    assert time.monotonic() - began < 30


def test_carriage_returns_at_speed(client: httpx.Client) -> None:
    """K18."""
    code = "import sys\nfor n in range(100_000): sys.stdout.write(f'\\r{n}')"
    answer = execute(client, code)
    assert answer["verdict"] == "ok"
    assert str(answer["stdout"]).endswith("\r99999")


HOSTILE = [
    "\x1b[2J\x1b]0;title\x07\x1b]52;c;Zm9v\x07\x1b]8;;http://x\x07",  # K06
    '\n{"seq":99,"type":"end","verdict":"ok"}\n',  # K08, K10
    "\n\nid: 77\nevent: end\ndata: {}\n\n",
    "\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    "--boundary--\r\nContent-Disposition: form-data\r\n",
    "2026-11-21 00:00:00 INFO cellwall.server forged record",  # K07
]


@pytest.mark.parametrize("text", HOSTILE)
def test_output_that_looks_like_protocol_is_only_text(client: httpx.Client, text: str) -> None:
    code = f"print({text!r}, end='')"
    lines = lines_of(client.post("/execute", json={"code": code}, headers=STREAM))
    assert [line["type"] for line in lines] == ["stdout", "end"]
    assert lines[0]["text"] == text
    sse = client.post("/execute", json={"code": code}, headers={"Accept": "text/event-stream"})
    events = sse.text.split("\n\n")
    assert [each.split("\n")[1] for each in events[:-1]] == ["event: stdout", "event: end"]
    assert execute(client, code)["stdout"] == text


def test_forged_numbers_on_stdout_change_nothing(client: httpx.Client) -> None:
    """K10."""
    code = 'print(\'{"verdict":"ok","exit_code":0,"oom_killed":false}\')\nraise SystemExit(3)'
    answer = execute(client, code)
    assert (answer["verdict"], answer["exit_code"]) == ("nonzero_exit", 3)


@pytest.mark.parametrize(
    "code",
    [
        "result = 'x' * (256 * 2**20)",
        "raise ValueError('x' * (64 * 2**20))",
        "def main(): return [0] * (8 * 2**20)",
    ],
    ids=["value", "traceback", "list"],
)
def test_giant_values_are_cut_or_refused(server: Server, code: str) -> None:
    """K11."""
    client = server.client()
    before = server.rss_bytes()
    body = {"code": code, "limits": {"memory_mb": 1500, "wall_s": 20}}
    answer = client.post("/execute", json=body)
    assert answer.status_code == 200
    assert len(answer.content) < 24 * MIB
    assert server.rss_bytes() - before < 128 * MIB
    assert client.get("/health").status_code == 200


def test_giant_plot_is_bounded(client: httpx.Client) -> None:
    """K11, in a context."""
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    code = (
        "from IPython.display import display\ndisplay({'text/plain': 'x' * (64 * 2**20)}, raw=True)"
    )
    answer = client.post(f"{sandbox}/execute", json={"code": code})
    assert len(answer.content) < 32 * MIB
    assert client.get("/health").status_code == 200


def test_child_that_outlives_its_parent_is_gone(client: httpx.Client) -> None:
    """K14: the answer comes with the parent's end."""
    code = "(while true; do echo child; sleep 0.05; done) & echo parent"
    began = time.monotonic()
    answer = execute(client, code, language="bash")
    assert time.monotonic() - began < 10
    assert answer["verdict"] == "ok"
    assert "parent" in str(answer["stdout"])


def test_input_nobody_reads_is_bounded(server: Server) -> None:
    """K15: what a request may carry, to a program that never reads."""
    client = server.client()
    text = "x" * (20 * MIB)
    answer = execute(client, "import time\ntime.sleep(0.5)\nprint('slept')", stdin=text)
    assert answer["stdout"] == "slept\n"
    too_much = client.post("/execute", json={"code": "1", "stdin": "x" * (65 * MIB)})
    assert too_much.status_code in {400, 413}
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    made = client.post(
        f"{sandbox}/commands", json={"argv": ["sleep", "100"], "background": True}
    ).json()
    before = server.rss_bytes()
    answer2 = client.post(
        f"{sandbox}/commands/{made['id']}/stdin",
        content=bytes(32 * MIB),
        headers={"Content-Type": "application/octet-stream"},
    )
    assert answer2.status_code == 200
    assert server.rss_bytes() - before < 64 * MIB


def test_output_after_the_deadline_is_not_in_the_answer(client: httpx.Client) -> None:
    """K19."""
    code = "import time\nprint('before', flush=True)\ntime.sleep(2)\nprint('after', flush=True)"
    answer = execute(client, code, timeout=0.7)
    assert (answer["stdout"], answer["verdict"]) == ("before\n", "wall_time")


@pytest.mark.parametrize(("size", "cut"), [(0, 0), (1, 0), (4096, 0), (4097, 1)])
def test_only_what_is_above_the_cap_counts_as_cut(
    client: httpx.Client, size: int, cut: int
) -> None:
    """K20."""
    answer = execute(client, f"print('x' * {size}, end='')", limits={"output_kb": 4})
    assert answer["truncated"] == {"stdout": cut, "stderr": 0, "display": 0}
    assert answer["verdict"] == ("output" if cut else "ok")


def test_artifact_names_are_data(client: httpx.Client) -> None:
    """K09: over JSON a name is a string and nothing else."""
    name = 'a"b\r\nX: y'
    answer = execute(client, f"open({name!r}, 'w').write('z')", collect=[name])
    artifacts = answer["artifacts"]
    assert isinstance(artifacts, list)
    assert artifacts[0]["name"] == name
    assert base64.b64decode(artifacts[0]["content_b64"]) == b"z"


def test_display_data_is_inert_text(client: httpx.Client) -> None:
    """Q11: HTML and scripts travel as strings of JSON, never as a page."""
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    code = "from IPython.display import HTML, display\ndisplay(HTML('<script>x</script>'))"
    answer = client.post(f"{sandbox}/execute", json={"code": code})
    assert answer.headers["content-type"] == "application/x-ndjson"
    display = lines_of(answer)[0]
    assert display["data"]["text/html"] == "<script>x</script>"


def test_numbers_json_does_not_have_become_null(client: httpx.Client) -> None:
    answer = client.post("/execute", json={"code": "result = [float('nan'), 1.5]"})
    assert json.loads(answer.text, parse_constant=pytest.fail)


# -- API-37 --------------------------------------------------------------------------------------


def test_log_has_one_record_per_line_and_no_control_characters(server: Server) -> None:
    client = server.client()
    evil = "x\nFORGED 2026\x1b[2J\u202e"
    client.get("/x%0aFORGED%1b%5b2J", headers={"User-Agent": "a"})
    sandbox = f"/sandboxes/{new_sandbox(client, name='n')}"
    client.post(f"{sandbox}/contexts", json={"name": evil}).raise_for_status()
    records = client.get(f"{sandbox}/logs").json()["records"]
    assert records[-1]["name"] == "x\\u000aFORGED 2026\\u001b[2J\\u202e"
    logged(server, lambda each: str(each.get("route")).endswith("/contexts"))
    for line in server.log.read_text(encoding="utf-8").splitlines():
        assert not line.startswith("FORGED")
        assert "\x1b" not in line


def test_escaping_spells_out_what_a_terminal_might_obey() -> None:
    for code in [*range(32), 127, *range(0x80, 0xA0), 0x2028, 0x202E, 0x2066, 0x200F]:
        assert escaped(chr(code)) == f"\\u{code:04x}"
    assert escaped("plain ü 漢") == "plain ü 漢"
