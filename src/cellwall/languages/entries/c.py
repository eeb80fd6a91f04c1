"""C by gcc. A C program has no uncaught errors: the kernel's signal is all there is to tell."""

from cellwall.languages.entries.language import Language, Sample

OPTIONS = (
    r"-O[0123sg]?",
    r"-g[0-3]?",
    r"-W(?![alp],)[a-z0-9=+-]{1,80}",
    r"-D[A-Za-z_]\w{0,80}(=[\w.+-]{0,80})?",
    r"-f(openmp|wrapv|trapv|no-strict-aliasing|sanitize=undefined)",
    "-pthread",
    "-pedantic",
)
"""Shared with C++. Nothing that names a file or a further program: no -I, -B, -Wl, @file."""

LANGUAGE = Language(
    name="c",
    aliases=("gcc",),
    extensions=(".c",),
    file_name="main.c",
    compile=("gcc", "-O2", "-std=gnu17", "{options}", "-o", "{build}/program", "{sources}", "-lm"),
    options=(*OPTIONS, r"-std=(c|gnu)(89|99|11|17|2x)"),
    run=("{build}/program",),
    context=None,
    version=("gcc", "--version"),
    install="apt-get install gcc libc6-dev",
    hello='#include <stdio.h>\n\nint main(void) {\n    puts("hello");\n}\n',
    failing=Sample("#include <stdlib.h>\n\nint main(void) {\n    abort();\n}\n"),
)
