"""C++ by g++."""

from cellwall.languages.entries.c import OPTIONS
from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="cpp",
    aliases=("c++", "cxx", "g++"),
    extensions=(".cpp", ".cc", ".cxx"),
    file_name="main.cpp",
    compile=("g++", "-O2", "-std=gnu++20", "{options}", "-o", "{build}/program", "{sources}"),
    options=(*OPTIONS, r"-std=(c|gnu)\+\+(11|14|17|20|2[ab])"),
    run=("{build}/program",),
    context=None,
    version=("g++", "--version"),
    install="apt-get install g++ libc6-dev",
    error=r"^terminate called after throwing an instance of '(?P<name>[^'\n]*)'"
    r"(?:\n  what\(\):  (?P<value>.*))?",
    hello='#include <iostream>\n\nint main() {\n    std::cout << "hello\\n";\n}\n',
    failing=Sample(
        '#include <stdexcept>\n\nint main() {\n    throw std::runtime_error("boom");\n}\n',
        "std::runtime_error",
    ),
)
