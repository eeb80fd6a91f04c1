"""A13: the host's files by every way Node.js has to read one.

Node has doors of its own past the ones Python's probes try: internal bindings, module loaders, a
child. The witness is a canary on the host; the control is the same script as a process of a
throw-away user, for whom each attempt must succeed.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import controls
from kit.arena import Arena

pytestmark = [pytest.mark.attack, pytest.mark.root, pytest.mark.needs("node")]

ATTEMPTS = r"""
const fs = require("fs"), os = require("os"), { execFileSync } = require("child_process");
const folder = "FOLDER", text = `${folder}/canary`;
const link = `${fs.mkdtempSync(`${os.tmpdir()}/a13-`)}/link`;
// Its own C++ half. Called as another version wants it, it aborts: hence in processes of their own.
const open = `process.binding("fs").open(${JSON.stringify(text)}, 0, 0o666`;
const bound = ["", ", undefined, failed"].map((rest) => `
  const failed = {}, fd = ${open}${rest});
  if (failed.code) process.exit(1);
  process.stdout.write(require("fs").readFileSync(fd, "utf8"));`);
const node = (code) => execFileSync(process.execPath, ["-e", code], { stdio: "pipe" }).toString();
function either() {
  for (const code of bound) {
    try { return node(code); } catch (error) { if (error.status !== null) throw error; }
  }
  throw new Error("both abort");
}
const attempts = {
  "template literal": () => fs.readFileSync(`${folder}/${"canary"}`, "utf8"),
  "bytes": () => fs.readFileSync(Buffer.from(text), "utf8"),
  "url": () => fs.readFileSync(new URL(`file://${text}`), "utf8"),
  "promise": () => fs.promises.readFile(text, "utf8"),
  "detour": () => fs.readFileSync(`/proc/self/root/../..${text}`, "utf8"),
  "link": () => (fs.symlinkSync(text, link), fs.readFileSync(link, "utf8")),
  "binding": either,
  "import": () => import(`${folder}/canary.mjs`).then((found) => found.default),
  "import by url": () => import(`file://${folder}/canary.mjs?again`).then((found) => found.default),
  "require": () => require(`${folder}/canary.json`),
  "child": () => execFileSync("cat", [text], { stdio: "pipe" }).toString(),
  "listing": () => fs.readdirSync(folder).join(),
};
(async () => {
  for (const [what, attempt] of Object.entries(attempts)) {
    let word = "REACHED", detail = "";
    try { detail = String(await attempt()); }
    catch (error) { word = error.code || `exit ${error.status}`; }
    console.log(JSON.stringify({ what, word, detail }));
  }
})();
"""
DENIED = {"ENOENT", "EACCES", "ERR_MODULE_NOT_FOUND", "MODULE_NOT_FOUND", "exit 1"}


@pytest.fixture
def bait() -> Iterator[tuple[Path, str]]:
    """A directory that only the wall protects, and the token in its files."""
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="bait-") as name:
        folder = Path(name)
        (folder / "canary").write_text(token)
        (folder / "canary.mjs").write_text(f"export default '{token}';\n")
        (folder / "canary.json").write_text(json.dumps(token))
        folder.chmod(0o755)
        yield folder, token
        assert (folder / "canary").read_text() == token
        assert sorted(path.name for path in folder.iterdir()) == [
            "canary",
            "canary.json",
            "canary.mjs",
        ]


def _unconfined(code: str) -> str:
    done = subprocess.run(
        [shutil.which("node", path="/usr/local/bin:/usr/bin:/bin") or "node", "-e", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=40,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        preexec_fn=controls.become_user,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_host_file_is_denied_to_javascript(arena: Arena, bait: tuple[Path, str]) -> None:
    """A13"""
    folder, token = bait
    code = ATTEMPTS.replace("FOLDER", str(folder))
    inside = arena.run(code, "javascript", limits={"memory_mb": 512}, timeout=20)
    assert token not in inside.stdout + inside.stderr
    tried = {line["what"]: line for line in map(json.loads, inside.stdout.splitlines()[1:])}
    assert {line["word"] for line in tried.values()} <= DENIED, tried
    outside = [json.loads(line) for line in _unconfined(code).splitlines()]
    assert [line["what"] for line in outside] == list(tried)
    assert [line["what"] for line in outside if line["word"] != "REACHED"] == []
    assert sum(token in line["detail"] for line in outside) == len(outside) - 1  # but the listing
