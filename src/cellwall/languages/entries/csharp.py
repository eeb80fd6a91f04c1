"""C# by Mono."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="csharp",
    aliases=("c#", "cs", "mono"),
    extensions=(".cs",),
    file_name="main.cs",
    compile=(
        "mcs",
        "-nologo",
        "-debug",
        "-optimize+",
        "-langversion:latest",
        "{options}",
        "-out:{build}/program.exe",
        "{sources}",
    ),
    options=(r"-checked[+-]?", r"-warn:[0-4]", "-warnaserror", r"-define:[\w;]{1,200}", "-unsafe"),
    run=("mono", "--debug", "{build}/program.exe"),
    context=None,
    version=("mcs", "--version"),
    install="apt-get install mono-mcs mono-runtime",
    error=r"^\[ERROR\] FATAL UNHANDLED EXCEPTION: (?P<name>[\w.]+): (?P<value>.*)$",
    line=r"^[ \t]+at [^\n]* in \S*{file}:(?P<line>\d{1,9})\s*$",
    hello="""using System;

class Program {
    static void Main() {
        Console.WriteLine("hello");
    }
}
""",
    failing=Sample(
        """using System;

class Program {
    static void Main() {
        throw new InvalidOperationException("boom");
    }
}
""",
        "System.InvalidOperationException",
        5,
    ),
)
