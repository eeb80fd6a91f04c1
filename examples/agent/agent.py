"""A small agent: a question about a CSV file, a model that writes Python, a sandbox that runs it.

    python examples/agent/agent.py [--chart chart.png]

The model is a script (`scripted_model.py`), so that this runs without a key and always says the
same; a real one has the same face: what was said so far goes in, what to do next comes out. Every
step is printed: the code, what the sandbox said, the answer.
"""

import argparse
import base64
import pathlib
import textwrap

from scripted_model import ScriptedModel

from cellwall.integrations.code_tool import CodeTool

HERE = pathlib.Path(__file__).parent
QUESTION = "orders.csv has our orders. Which weekday brings the most revenue? Draw it, too."
MOST_STEPS = 10


def show(title, text):
    print(f"── {title} " + "─" * (76 - len(title)))
    print(textwrap.indent(text.strip(), "   "), end="\n\n")


def solve(question, model, tool):
    """Return the model's answer and the charts that its code drew, as PNG."""
    charts = []
    said = [("user", question)]
    for step in range(1, MOST_STEPS + 1):
        move = model.next(said, tool.parameters)
        if "answer" in move:
            return move["answer"], charts
        show(f"step {step}: the model wants to run", move["arguments"].get("code", "?"))
        result = tool.call(move["arguments"])
        show("the sandbox says", result.text)
        said += [("assistant", move), ("tool", result.text)]
        charts += [base64.b64decode(image) for image in result.images]
    return "I could not find out.", charts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chart", type=pathlib.Path, default=pathlib.Path("chart.png"))
    options = parser.parse_args()

    show("question", QUESTION)
    files = {"orders.csv": (HERE.parent / "orders.csv").read_bytes()}
    with CodeTool("data", timeout=30, limits={"memory_mb": 512}, files=files) as tool:
        answer, charts = solve(QUESTION, ScriptedModel(), tool)
    if charts:
        options.chart.write_bytes(charts[-1])
        show("chart", f"{options.chart}, {len(charts[-1])} bytes")
    show("answer", answer)


if __name__ == "__main__":
    main()
