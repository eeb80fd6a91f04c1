"""OCaml's native compiler; further files are compiled in the order they are given."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="ocaml",
    aliases=("ml",),
    extensions=(".ml",),
    file_name="main.ml",
    compile=(
        "ocamlopt",
        "-g",
        "{options}",
        "-o",
        "{build}/program",
        "unix.cmxa",
        "str.cmxa",
        "{sources}",
    ),
    options=(r"-w [+a-z0-9-]{1,80}", r"-w=?[+a-z0-9-]{1,80}", "-unsafe", "-principal"),
    run=("{build}/program",),
    needs=("gcc",),
    context=None,
    version=("ocamlopt", "--version"),
    install="apt-get install ocaml-nox",
    env={"OCAMLRUNPARAM": "b"},
    error_status=(2,),
    error=r"^Fatal error: exception (?P<name>[\w.]+)(?:\((?P<value>.*)\))?",
    line=r'in file "{file}"(?: \(inlined\))?, line (?P<line>\d{1,9})',
    hello='let () = print_endline "hello"\n',
    failing=Sample('let f () =\n  failwith "boom"\nlet () = f ()\n', "Failure", 2),
)
