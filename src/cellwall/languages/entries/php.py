"""PHP's command line, without a memory limit of its own: the sandbox has one."""

from cellwall.languages.entries.language import Language, Sample

_PHP = ("php", "-d", "memory_limit=-1", "-d", "display_errors=stderr", "-d", "log_errors=0")

LANGUAGE = Language(
    name="php",
    aliases=("php-cli",),
    extensions=(".php",),
    file_name="main.php",
    run=(*_PHP, "{file}"),
    context=None,
    version=("php", "--version"),
    install="apt-get install php-cli",
    call=(*_PHP, "{caller}", "{file}"),
    caller="call.php",
    error_status=(255,),
    error=r"^(?:PHP )?Fatal error: +Uncaught (?P<name>[\w\\]+)(?:: (?P<value>[^\n]*?))?"
    r" in \S+:(?P<line>\d{1,9})$",
    hello='<?php\necho "hello\\n";\n',
    failing=Sample(
        '<?php\nfunction f() {\n    throw new RuntimeException("boom");\n}\nf();\n',
        "RuntimeException",
        3,
    ),
)
