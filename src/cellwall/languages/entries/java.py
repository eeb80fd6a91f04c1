"""Java by OpenJDK. The heap may grow to the memory limit: the kernel says when that is too much."""

from cellwall.languages.entries.jvm import PLACE, SMALL, UNCAUGHT
from cellwall.languages.entries.language import Language, Sample

_MODIFIERS = r"(?:(?:abstract|final|sealed|strictfp) ){0,4}"
_TYPE = rf"{_MODIFIERS}(?:class|record|enum|interface)"

LANGUAGE = Language(
    name="java",
    aliases=("openjdk",),
    extensions=(".java",),
    file_name="Main.java",
    compile=(
        "javac",
        *(f"-J{flag}" for flag in SMALL),
        "-encoding",
        "UTF-8",
        "-d",
        "{build}",
        "{options}",
        "{sources}",
    ),
    options=(r"-Xlint(:[a-z,-]{1,200})?", "-Werror", "-parameters", "-g", "--enable-preview"),
    run=("java", *SMALL, "-Xmx{memory}m", "-cp", "{build}", "{stem}"),
    context="java",
    version=("javac", "-version"),
    install="apt-get install default-jdk-headless",
    named_by=(
        # What is indented lies inside another, as a rule.
        rf"^public {_TYPE} ([A-Za-z_]\w*)",
        rf"^{_TYPE} ([A-Za-z_]\w*)(?:(?!^{_TYPE} |\}}[ \t]*{_TYPE} )[\s\S])*?\bvoid main\b",
        rf"^[ \t]*public {_TYPE} ([A-Za-z_]\w*)",
        r"\bclass ([A-Za-z_]\w*)(?:(?!\bclass )[\s\S])*?\bvoid main\b",
    ),
    error=UNCAUGHT,
    line=PLACE,
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
