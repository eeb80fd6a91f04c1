"""Python: warm contexts by the template's interpreter; `run` is the cold way."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="python",
    aliases=("py", "python3", "ipython"),
    extensions=(".py", ".ipy"),
    file_name="main.py",
    run=("python3", "{file}"),
    context="python",
    version=("python3", "--version"),
    install="apt-get install python3",
    line=r'\A(?s:.*)File "(?:[^"\n]*/)?{file}", line (?P<line>\d{1,9})',
    hello='print("hello")\n',
    failing=Sample('def f():\n    raise ValueError("boom")\nf()\n', "ValueError", 2),
)
