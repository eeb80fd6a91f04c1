"""SQL by DuckDB: in the context's own process, over files of the sandbox and data frames."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="sql",
    aliases=("duckdb",),
    extensions=(".sql",),
    file_name="main.sql",
    run=(),
    context="sql",
    template="data",
    version=("python3", "-c", "print('DuckDB of the template')"),
    install="use the template 'data', or add duckdb to the packages of your own",
    hello="COPY (SELECT 'hello') TO '/dev/stdout' (HEADER false);\n",
    failing=Sample("SELECT 1;\nSELECT * FROM nowhere;\n", "CatalogException"),
)
