"""Arguments go in as JSON, a result comes out as JSON, files come out by name."""

import cellwall

execution = cellwall.run(
    """
def main(numbers, factor):
    with open("report.txt", "w") as report:
        report.write("done")
    return {"scaled": [n * factor for n in numbers]}
""",
    arguments={"numbers": [1, 2, 3], "factor": 10},
    collect=["report.txt"],
)
assert execution.result == {"scaled": [10, 20, 30]}
assert execution.files["report.txt"] == b"done"
