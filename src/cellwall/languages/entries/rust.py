"""Rust by rustc; `mod name;` finds files beside the program, there are no crates."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="rust",
    aliases=("rs",),
    extensions=(".rs",),
    file_name="main.rs",
    compile=(
        "rustc",
        "--edition=2021",
        "--crate-name=program",
        "-Copt-level=1",
        "-Cstrip=symbols",
        "{options}",
        "-o",
        "{build}/program",
        "{file}",
    ),
    options=(r"-Copt-level=[0-3sz]", "-O", r"-Coverflow-checks=(on|off)", r"--cfg=[\w]{1,80}"),
    run=("{build}/program",),
    needs=("cc",),
    context=None,
    version=("rustc", "--version"),
    install="apt-get install rustc gcc libc6-dev",
    error_status=(101,),
    error=r"^thread '[^'\n]*' (?P<name>panicked) at (?:'(?P<value>[^\n]*)', )?"
    r"\S*\.rs:(?P<line>\d{1,9}):\d",
    hello='fn main() {\n    println!("hello");\n}\n',
    failing=Sample('fn main() {\n    panic!("boom");\n}\n', "panicked", 2),
)
