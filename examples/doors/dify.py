"""Dify's wire: a code node of a workflow, as Dify's own client sends it.

Run it with the address of a server that has `[doors.dify]`, and a key:

    CELLWALL_URL=http://127.0.0.1:8080 CELLWALL_API_KEY=cw_… python dify.py
"""

import os

import httpx

answer = httpx.post(
    f"{os.environ['CELLWALL_URL']}/dify/v1/sandbox/run",
    headers={"X-Api-Key": os.environ["CELLWALL_API_KEY"]},
    json={
        "language": "python3",
        "code": "print('<<RESULT>>' + str(6 * 7) + '<<RESULT>>')",
        "preload": "",
        "enable_network": True,
    },
    timeout=30,
).json()
print(answer["message"], answer["data"]["stdout"].strip().split("<<RESULT>>")[1])
