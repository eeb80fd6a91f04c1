"""Java by OpenJDK. The heap may grow to the memory limit: the kernel says when that is too much.

A JVM reserves a lot of address space and touches little of it; nothing here bounds the former.
Class-data sharing and one compiler tier start it sooner and keep it small.
"""

from cellwall.languages.language import Language, Sample

_SMALL = (
    "-Xshare:auto",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
)
_MODIFIERS = r"(?:(?:abstract|final|sealed|strictfp) ){0,4}"

LANGUAGE = Language(
    name="java",
    aliases=("openjdk",),
    extensions=(".java",),
    file_name="Main.java",
    compile=(
        "javac",
        *(f"-J{flag}" for flag in _SMALL),
        "-encoding",
        "UTF-8",
        "-d",
        "{build}",
        "{options}",
        "{sources}",
    ),
    options=(r"-Xlint(:[a-z,-]{1,200})?", "-Werror", "-parameters", "-g", "--enable-preview"),
    run=("java", *_SMALL, "-Xmx{memory}m", "-cp", "{build}", "{stem}"),
    context="java",
    version=("javac", "-version"),
    install="apt-get install default-jdk-headless",
    named_by=(
        rf"^[ \t]*public {_MODIFIERS}(?:class|record|enum|interface) ([A-Za-z_]\w*)",
        r"\bclass ([A-Za-z_]\w*)(?:(?!\bclass )[\s\S])*?\bvoid main\b",
    ),
    error=r'^Exception in thread "[^"\n]*" (?P<name>[\w.$]+)(?:: (?P<value>.*))?$',
    line=r"^[ \t]+at [^\n(]*\({file}:(?P<line>\d{1,9})\)$",
    hello="""public class Main {
    public static void main(String[] args) {
        System.out.println("hello");
    }
}
""",
    failing=Sample(
        """public class Main {
    public static void main(String[] args) {
        throw new IllegalStateException("boom");
    }
}
""",
        "java.lang.IllegalStateException",
        3,
    ),
)
