"""A harness of verifiers: a small program in the sandbox that asks the model what to run."""

from __future__ import annotations

import json

import verifiers.v1 as vf

__all__ = ["ShellHarness"]
PROGRAM = """
import json, os, subprocess, sys, urllib.request

messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    body = json.dumps({"model": os.environ["MODEL"], "messages": messages}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["KEY"]}
    request = urllib.request.Request(os.environ["ENDPOINT"] + "/chat/completions", body, headers)
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    messages.append({"role": "assistant", "content": said})
    if not said.startswith("run: "):
        break
    done = subprocess.run(["sh", "-c", said[5:]], capture_output=True, text=True)
    messages.append({"role": "user", "content": done.stdout + done.stderr})
"""


class ShellHarness(vf.Harness[vf.HarnessConfig]):
    """Runs one command for each answer that begins with `run:`."""

    async def setup(self, runtime: vf.Runtime) -> None:
        """Bring the program into the sandbox."""
        await runtime.write("/opt/agent/program.py", PROGRAM.encode())

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        """Run the program to its end."""
        assert json.dumps(mcp_urls) == "{}"
        env = {"MODEL": ctx.model, "KEY": secret, "ENDPOINT": endpoint}
        return await runtime.run_program(
            ["python3", "/opt/agent/program.py", data.prompt_text], env
        )
