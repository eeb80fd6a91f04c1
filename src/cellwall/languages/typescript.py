"""TypeScript: esbuild makes one JavaScript file of it; types are not checked."""

from cellwall.languages.javascript import ERROR
from cellwall.languages.language import Language, Sample

LANGUAGE = Language(
    name="typescript",
    aliases=("ts",),
    extensions=(".ts", ".mts", ".cts"),
    file_name="main.ts",
    compile=(
        "esbuild",
        "{file}",
        "--bundle",
        "--platform=node",
        "--format=cjs",
        "--target=es2022",
        "--tree-shaking=false",
        "--sourcemap=inline",
        "--log-level=warning",
        "--color=false",
        "{options}",
        "--outfile={build}/main.js",
    ),
    options=(r"--target=es20\d\d", "--minify", "--keep-names"),
    run=("node", "--enable-source-maps", "{build}/main.js"),
    needs=("node",),
    context="typescript",
    version=("esbuild", "--version"),
    install="apt-get install esbuild nodejs",
    call=("node", "--enable-source-maps", "{caller}", "{build}/main.js"),
    caller="call.js",
    error=ERROR,
    line=r"^\S*{file}:(?P<line>\d{1,9})$",
    hello='const text: string = "hello";\nconsole.log(text);\n',
    failing=Sample(
        'function f(): never {\n  throw new TypeError("boom");\n}\nf();\n', "TypeError", 2
    ),
)
