import json
import subprocess

PROGRAM = ["python3", "/srv/words.py"]


def said(text):
    done = subprocess.run(PROGRAM, input=text, capture_output=True, text=True, check=False)
    return done.stdout


rewards = {
    "reward": said("b a\nb ü") == "a 1\nb 2\nü 1\n",
    "empty": said("x") == "x 1\n" and said("") == "",
}
print(json.dumps({name: float(value) for name, value in rewards.items()}))
