"""R by Rscript."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="r",
    aliases=("rscript", "rlang"),
    extensions=(".r",),
    file_name="main.r",
    run=("Rscript", "--vanilla", "{file}"),
    context="r",
    version=("Rscript", "--version"),
    install="apt-get install r-base-core r-cran-jsonlite",
    call=("Rscript", "--vanilla", "{caller}", "{file}"),
    caller="call.r",
    # Where no device was opened, plots go to Rplots.pdf, which is never shown.
    env={"R_DEFAULT_DEVICE": "png"},
    pictures="Rplot%03d.png",
    error=r"^(?P<name>Error)(?: in [^\n]{0,200})?:\s+(?P<value>[^\n]*)$"
    r"(?![\s\S]*?^Error[ :])",
    hello='cat("hello\\n")\n',
    failing=Sample('f <- function() {\n  stop("boom")\n}\nf()\n', "Error"),
)
