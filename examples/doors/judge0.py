"""Judge0's wire: a submission gets a token, and is asked for until it is judged.

Run it with the address of a server that has `[doors.judge0]`, and a key:

    CELLWALL_URL=http://127.0.0.1:8080 CELLWALL_API_KEY=cw_… python judge0.py
"""

import os
import time

import httpx

submission = {
    "language_id": 71,
    "source_code": "print(input()[::-1])",
    "stdin": "llec",
    "expected_output": "cell",
}
headers = {"X-Auth-Token": os.environ["CELLWALL_API_KEY"]}
url = f"{os.environ['CELLWALL_URL']}/judge0/submissions"
token = httpx.post(url, headers=headers, json=submission, timeout=30).json()["token"]
judged = {"status": {"id": 1}}
while judged["status"]["id"] <= 2:
    time.sleep(0.05)
    judged = httpx.get(f"{url}/{token}", headers=headers, timeout=30).json()
print(judged["status"]["description"], judged["stdout"].strip())
