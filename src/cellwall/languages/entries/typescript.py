"""TypeScript: esbuild makes one JavaScript file of it; types are not checked.

A script first, with `require`, `module` and `__dirname`, as most programs are; a program that
awaits at its top level can only be a module, and is made into one, which a script then imports.
"""

from cellwall.languages.entries.javascript import ERROR
from cellwall.languages.entries.language import Language, Sample

_BANNER = (
    'import { createRequire as __make } from "node:module"; '
    'import { fileURLToPath as __path } from "node:url"; '
    "Object.assign(globalThis, { require: __make(import.meta.url), "
    '__filename: __path(import.meta.url), __dirname: __path(new URL(".", import.meta.url)) });'
)
"""Globals, so that a program may declare its own."""
_FOOTER = (
    "if (process.env.CELLWALL_ARGUMENTS) Object.assign(globalThis, "
    '{ main: typeof main === "function" ? main : undefined, '
    'result: typeof result === "undefined" ? undefined : result });'
)
_BUILD = f"""
build=$1
shift
if said=$(esbuild --format=cjs --outfile="$build/main.js" "$@" 2>&1); then
    [ -z "$said" ] || printf '%s\\n' "$said" >&2
    exit 0
fi
case $said in
    *'Top-level await is '*) ;;
    *) printf '%s\\n' "$said" >&2; exit 1 ;;
esac
esbuild --format=esm --outfile="$build/main.mjs" \\
    '--banner:js={_BANNER}' '--footer:js={_FOOTER}' "$@" &&
printf '%s' 'import("./main.mjs");' >"$build/main.js"
"""

LANGUAGE = Language(
    name="typescript",
    aliases=("ts",),
    extensions=(".ts", ".mts", ".cts"),
    file_name="main.ts",
    compile=(
        "sh",
        "-c",
        _BUILD,
        "esbuild",
        "{build}",
        "{file}",
        "--bundle",
        "--platform=node",
        "--target=es2022",
        "--tree-shaking=false",
        "--sourcemap=inline",
        "--log-level=warning",
        "--color=false",
        "{options}",
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
