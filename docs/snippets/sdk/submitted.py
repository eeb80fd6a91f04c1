"""A program that nobody waits for: the server has it on disk, runs it once, keeps what it did."""

import cellwall

with cellwall.connect() as client:
    noted = client.submit("print('done')\nresult = 6 * 7").id

with cellwall.connect() as client:  # elsewhere, later, after a restart of the server
    submitted = client.execution(noted)
    assert submitted.result(timeout=60).result == 42
    assert submitted.status() == "success"
    assert [event.kind for event in submitted.events()] == ["stdout", "value", "end"]
