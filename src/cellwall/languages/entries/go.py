"""Go: the distribution's compiler with its compiled standard library, and no network.

CGO_ENABLED stays as the compiler's distributor has it: the compiled standard library that comes
with it was made so, and of another each program would compile half of `net/http` anew.
"""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="go",
    aliases=("golang",),
    extensions=(".go",),
    file_name="main.go",
    compile=("go", "build", "-ldflags=-s -w", "{options}", "-o", "{build}/program", "{sources}"),
    options=("-race", r"-tags=[\w,]{1,200}"),
    run=("{build}/program",),
    context=None,
    version=("go", "version"),
    install="apt-get install golang-go",
    env={
        "GOCACHE": "/tmp/go-build",
        "GOPATH": "/tmp/go",
        "GOPROXY": "off",
        "GOFLAGS": "-buildvcs=false",
        "GO111MODULE": "off",
    },
    error_status=(2,),
    error=r"^(?P<name>panic): (?P<value>.*)$",
    line=r"^\t\S*{file}:(?P<line>\d{1,9})\b",
    hello='package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("hello")\n}\n',
    failing=Sample('package main\n\nfunc main() {\n\tpanic("boom")\n}\n', "panic", 4),
)
