import subprocess

from figures.mean import mean


def test_mean_of_one():
    assert mean([42]) == 42


def test_that_it_was_committed():
    log = subprocess.run(["git", "log", "--format=%s"], check=True, capture_output=True, text=True)
    assert log.stdout.split("\n")[:2] == ["Divide by the number of values", "A mean"]
    status = subprocess.run(["git", "diff", "HEAD"], check=True, capture_output=True, text=True)
    assert status.stdout == ""
