"""The usual way: FastAPI and `subprocess`. No isolation, no limit but a timeout. Do not use it.

Measured beside cellwall by `mix100.py`. Run with: python bench/tutorial_server.py PORT
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class CodeRequest(BaseModel):
    """What to run."""

    code: str
    timeout: float = 30


@app.post("/execute")
def execute(request: CodeRequest) -> dict[str, object]:
    """Run the code in a process of its own."""
    began = time.perf_counter()
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(request.code)
        file.flush()
        try:
            done = subprocess.run(
                [sys.executable, file.name],
                capture_output=True,
                text=True,
                timeout=request.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"verdict": "wall_time", "stdout": "", "error": "timeout"}
    return {
        "verdict": "ok" if done.returncode == 0 else "nonzero_exit",
        "stdout": done.stdout,
        "error": done.stderr or None,
        "time_ms": (time.perf_counter() - began) * 1000,
    }


if __name__ == "__main__":
    print("listening on", sys.argv[1], flush=True)
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
