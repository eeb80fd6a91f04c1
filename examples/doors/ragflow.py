"""RAGFlow's wire: a program's `main` is called with arguments, and its value comes back.

Run it with the address of a server that has `[doors.ragflow]`, and a key:

    CELLWALL_URL=http://127.0.0.1:8080 CELLWALL_API_KEY=cw_… python ragflow.py
"""

import base64
import os

import httpx

program = """
def main(words: list) -> dict:
    return {"longest": max(words, key=len)}
"""
answer = httpx.post(
    f"{os.environ['CELLWALL_URL']}/ragflow/run",
    headers={"Authorization": f"Bearer {os.environ['CELLWALL_API_KEY']}"},
    json={
        "code_b64": base64.b64encode(program.encode()).decode(),
        "language": "python",
        "arguments": {"words": ["wall", "sandbox", "cell"]},
    },
    timeout=30,
).json()
print(answer["status"], answer["result"]["value"])
