"""What any release of E2B's Python SDK from 2.8 on can do; the three variables say where.

Arguments name the parts: `plain`, `interpreter`.
"""

from __future__ import annotations

import sys

from e2b import Sandbox as Plain
from e2b_code_interpreter import Sandbox  # type: ignore[import-untyped]


def plain() -> None:
    with Plain.create(timeout=60, metadata={"kind": "a b"}, envs={"FROM": "create"}) as sandbox:
        assert sandbox.is_running()
        assert sandbox.commands.run("echo $FROM").stdout == "create\n"
        sandbox.files.write("folder/text", "kept")
        assert sandbox.files.read("folder/text") == "kept"
        assert [each.name for each in sandbox.files.list("folder")] == ["text"]
        said: list[str] = []
        background = sandbox.commands.run("cat", background=True, stdin=True)
        sandbox.commands.send_stdin(background.pid, "in\n")
        for stdout, _, _ in background:
            said.append(stdout or "")
            background.kill()
            break
        assert said == ["in\n"], said
        sandbox.set_timeout(120)
        assert sandbox.get_info().metadata["kind"] == "a b"
        again = Plain.connect(sandbox.sandbox_id)
        assert again.files.exists("folder/text")
        assert again.kill()
        assert not sandbox.is_running()


def interpreter() -> None:
    with Sandbox.create() as sandbox:
        sandbox.run_code("x = 41")
        assert sandbox.run_code("x + 1").text == "42"
        assert sandbox.run_code("1 / 0").error.name == "ZeroDivisionError"
        context = sandbox.create_code_context(cwd="/tmp")
        assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"


for part in sys.argv[1:]:
    {"plain": plain, "interpreter": interpreter}[part]()
print("done")
