"""Haskell by GHC; modules beside the program are found by their names."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="haskell",
    aliases=("hs", "ghc"),
    extensions=(".hs",),
    file_name="Main.hs",
    compile=(
        "ghc",
        "-v0",
        "-O0",
        "-outputdir",
        "/tmp/ghc",
        "{options}",
        "-o",
        "{build}/program",
        "{file}",
    ),
    options=(r"-O[0-2]?", r"-W[a-z-]{0,80}", r"-X[A-Z][A-Za-z0-9]{1,80}", "-threaded"),
    run=("{build}/program",),
    needs=("gcc",),
    context=None,
    version=("ghc", "--version"),
    install="apt-get install ghc",
    env={"GHC_PACKAGE_PATH": "/opt/var/ghc/package.conf.d"},
    error=r"^program: (?P<value>.*)$",
    line=r"called at {file}:(?P<line>\d{1,9}):",
    hello='main :: IO ()\nmain = putStrLn "hello"\n',
    failing=Sample('main :: IO ()\nmain =\n  error "boom"\n', "Error", 3),
)
