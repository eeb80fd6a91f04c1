"""Kotlin on OpenJDK, by the distribution's compiler.

The program is an archive: the compiler writes into it which class has `main`.
"""

from cellwall.languages.entries.jvm import PLACE, SMALL, UNCAUGHT
from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="kotlin",
    aliases=("kt",),
    extensions=(".kt",),
    file_name="Main.kt",
    compile=(
        "kotlinc",
        *(f"-J{flag}" for flag in (*SMALL, "-Xmx{memory}m")),
        "-J-XX:-PrintWarnings",  # of an option that `kotlinc` itself gives
        "-no-reflect",
        "-jvm-target",
        "1.8",
        "{options}",
        "-d",
        "{build}/program.jar",
        "{sources}",
    ),
    options=("-Werror", "-nowarn", "-progressive", "-java-parameters"),
    run=(
        "java",
        *SMALL,
        "-Xmx{memory}m",
        "-Xbootclasspath/a:/usr/share/java/kotlin-stdlib.jar",
        "-jar",
        "{build}/program.jar",
    ),
    context=None,
    version=("kotlinc", "-J-XX:-PrintWarnings", "-version"),
    install="apt-get install kotlin default-jre-headless",
    error=UNCAUGHT,
    line=PLACE,
    hello='fun main() {\n    println("hello")\n}\n',
    failing=Sample(
        'fun main() {\n    throw IllegalStateException("boom")\n}\n',
        "java.lang.IllegalStateException",
        2,
    ),
)
