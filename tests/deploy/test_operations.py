"""docs/operations.md as a whole: every command of it, in its order, on a box of its own.

The box is this machine in namespaces: /etc, /opt, /root and the state are private, everything
ends with the shell. Three commands cannot be what they are on a real box. `systemctl` is a
stand-in that does what the unit says, walls included, because there is no pid 1 to ask; `sysctl`
only compares names with the kernel's, because its settings belong to the whole machine; and the
package is installed from this clone, because it is not published. Ports are free ones.

On a machine of the tests' own (`tests/vm/run`) all of it is real but the package's origin.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from conftest import require_capability
from kit.places import ROOT, TESTS

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- runs: (\w+) -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
_MARK = "=====block "
_BOX = """
set -eu
mkdir -p /var/lib/cellwall /var/log/cellwall
mount -t tmpfs tmpfs /run
for folder in /etc /opt /root /usr/lib/sysusers.d; do
    mkdir -p /run/box$folder/upper /run/box$folder/work
    layers=lowerdir=$folder,upperdir=/run/box$folder/upper,workdir=/run/box$folder/work
    mount -t overlay overlay -o $layers $folder
done
mount -t tmpfs tmpfs /var/lib/cellwall
mount -t tmpfs tmpfs /var/log/cellwall
mkdir /run/bin
printf '#!/bin/sh\\nexec %s %s "$@"\\n' "$PYTHON" "$SYSTEMCTL" > /run/bin/systemctl
printf '%s\\n' '#!/bin/sh' 'for each; do file=${each#--load=}; done' \\
    'sed -n "s/ *=.*//; /^[a-z]/p" "$file" |' 'while read -r name; do' \\
    'test -e "/proc/sys/$(echo "$name" | tr . /)" || test "$2" = --ignore || exit 1; done' \\
    > /run/bin/sysctl
chmod +x /run/bin/*
export PATH=/run/bin:/usr/sbin:/usr/bin:/sbin:/bin
unset CELLWALL_STATE_DIR CELLWALL_API_KEY CELLWALL_CONFIG
trap 'tail -c 3000 /run/cellwall-test.journal >&2 2>/dev/null || true' EXIT
"""

OWN_MACHINE = os.environ.get("CELLWALL_TEST_OWN_MACHINE") == "1"
_NO_BOX = """
set -eu
unset CELLWALL_STATE_DIR CELLWALL_API_KEY CELLWALL_CONFIG
trap 'journalctl --unit cellwall --no-pager --lines 30 >&2' EXIT
"""

_MOST_S = 3600 if OWN_MACHINE else 560
"""An emulated processor takes ten times as long."""

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(_MOST_S + 40)]


def _packages() -> str:
    """Return which of the page's packages is missing: installing it would not stay in the box."""
    text = dict(BLOCKS)["packages"]
    names = [word for word in text.split() if not word.startswith("-")][2:]
    for name in [*names, "systemd"]:
        argv = ["dpkg-query", "-W", "-f=${Status}", name]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if "install ok installed" not in done.stdout:
            return f"apt-get install {name}"
    return ""


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What each block of the page printed, by its name."""
    has_dpkg = shutil.which("dpkg-query") is not None
    require_capability("Debian", has_dpkg, "the page is for Debian")
    require_capability("packages", not _packages(), _packages())
    server, metrics = _free_ports(2)
    script = _NO_BOX if OWN_MACHINE else _BOX
    for name, text in BLOCKS:
        script += f"\nprintf '\\n%s\\n' '{_MARK}{name}'\n{text}"  # a JSON answer ends no line
    script = script.replace("'cellwall[server]'", f"'{ROOT}[server]'")
    script = script.replace("8080", str(server)).replace("9090", str(metrics))
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*(() if OWN_MACHINE else unshare), "/bin/bash", "-c", script],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHON": sys.executable,
            "SYSTEMCTL": str(TESTS / "kit" / "deploy" / "stand_in_systemctl.py"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=_MOST_S,
    )
    parts = re.split(rf"^{_MARK}(\w+)\n", done.stdout, flags=re.MULTILINE)
    assert done.returncode == 0, f"{parts[-2:]}\n{done.stderr[-4000:]}"
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_block_of_the_page_runs(printed: dict[str, str]) -> None:
    assert list(printed) == [name for name, _ in BLOCKS]
    assert PAGE.count("```sh\n") == len(BLOCKS)


def test_host_and_settings_are_found_good(printed: dict[str, str]) -> None:
    assert "cellwall.toml: good\n" in printed["check"]
    assert "PASS" in printed["check"]
    assert "FAIL" not in printed["check"]


def test_tenants_are_apart_and_bounded(printed: dict[str, str]) -> None:
    said = printed["tenants"]
    assert '"stdout":"42\\n"' in said
    assert '"code":"not_found"' in said
    assert '"tier":"small"' in said
    assert said.count('"status":"running"') == 5
    assert '"code":"quota"' in said


def test_metrics_count_what_happened(printed: dict[str, str]) -> None:
    said = printed["metrics"]
    assert re.search(r'^cellwall_executions_total\{.*verdict="ok"\} 1', said, re.MULTILINE)
    # One that counted nothing under any label prints no line; then its definition must do.
    sources = [
        ROOT / "src/cellwall/server" / name
        for name in ("observability/metrics.py", "observability/observer.py")
    ]
    defined = "".join(path.read_text(encoding="utf-8") for path in sources)
    for name in re.findall(r"`(cellwall_\w+)", PAGE[: PAGE.index("## Audit")]):
        stem = name.removeprefix("cellwall_").removesuffix("_total")
        assert name in said or f'"{stem}"' in defined, name


def test_audit_is_verified_with_its_anchors(printed: dict[str, str]) -> None:
    whole = r"records \(1 to \d+\): whole\n([1-9]\d*) of \1 anchors agree"
    assert len(re.findall(whole, printed["audit"])) == 2  # in the store, and as files


def test_old_key_is_refused_and_the_new_one_is_not(printed: dict[str, str]) -> None:
    refused, _, accepted = printed["rotate"].partition('"}}')
    assert '"code":"unauthorized"' in refused
    assert '"sandboxes":[' in accepted


def test_records_come_back(printed: dict[str, str]) -> None:
    assert "checked" in printed["backup"]
    assert "restored; what was there is" in printed["restore"]
    assert '"stdout":"42\\n"' in printed["restore"]


def test_incident_shows_whose_it_was(printed: dict[str, str]) -> None:
    assert "revoked" in printed["incident"]
    assert "tenant=initech" in printed["incident"]
