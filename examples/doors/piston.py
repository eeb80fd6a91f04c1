"""Piston's wire: a chat bot runs what was typed.

Run it with the address of a server that has `[doors.piston]`, and a key:

    CELLWALL_URL=http://127.0.0.1:8080 CELLWALL_API_KEY=cw_… python piston.py
"""

import os

import httpx

answer = httpx.post(
    f"{os.environ['CELLWALL_URL']}/piston/api/v2/execute",
    headers={"Authorization": os.environ["CELLWALL_API_KEY"]},
    json={
        "language": "python",
        "version": "3.x",
        "files": [{"name": "hello.py", "content": "import sys; print('hello', sys.argv[1])"}],
        "args": ["chat"],
    },
    timeout=30,
).json()
print(answer["language"], answer["run"]["code"], answer["run"]["output"].strip())
