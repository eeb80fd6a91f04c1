"""SandboxFusion's wire: a program is judged by its output, as a reward of reinforcement learning.

Run it with the address of a server that has `[doors.fusion]`, and a key:

    CELLWALL_URL=http://127.0.0.1:8080 CELLWALL_API_KEY=cw_… python fusion.py
"""

import os

import httpx

answer = httpx.post(
    f"{os.environ['CELLWALL_URL']}/fusion/run_code",
    headers={"Authorization": f"Bearer {os.environ['CELLWALL_API_KEY']}"},
    json={
        "language": "python",
        "code": "print(sum(map(int, input().split())))",
        "stdin": "20 22\n",
        "run_timeout": 3,
    },
    timeout=30,
).json()
reward = float(answer["status"] == "Success" and answer["run_result"]["stdout"] == "42\n")
print(answer["status"], reward)
