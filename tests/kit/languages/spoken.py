"""What the tests of contexts say in each language. Data only; the promises are in the tests."""

from __future__ import annotations

from dataclasses import dataclass

TEXT = "hé λ → 😀"


@dataclass(frozen=True)
class Spoken:
    """One language's way of saying what every context must understand."""

    language: str
    template: str
    keep: str
    """Sets a variable to 41."""
    kept: str
    """Its value plus one."""
    shown: str
    """How 42 is shown as a result; empty where cells have no value."""
    split: str
    """Prints `out` and `err`, each on its own stream."""
    say: str
    """Prints TEXT."""
    fail: str
    error: str
    """The error's name; empty where there is only an exit status."""
    loop: str
    """Prints `on` and never ends."""
    stream: str
    """Prints `a`, waits for a file called `go`, prints `b`."""
    flood: str
    """Prints three million bytes."""
    write: str
    """Writes TEXT into `shared.txt`."""
    read: str
    """Prints what is in `shared.txt`."""
    echo: str
    """Prints the first line of its input."""
    leave: str
    """Ends the interpreter with status 3."""
    shell: str
    """Runs `bash junk.sh`; empty where a language cannot."""
    rich: str = ""
    """Shows something that is more than text."""
    mime: str = ""


JAVASCRIPT = Spoken(
    language="javascript",
    template="python",
    keep="let x = 41;",
    kept="x + 1",
    shown="42",
    split="console.log('out'); console.error('err');",
    say=f"console.log({TEXT!r});",
    fail="function f() { throw new RangeError('bad'); }\nf();",
    error="RangeError",
    loop="console.log('on'); while (true) {}",
    stream="console.log('a'); const fs1 = require('fs');\n"
    "while (!fs1.existsSync('go')) await new Promise((done) => setTimeout(done, 5));\n"
    "console.log('b');",
    flood="process.stdout.write('x'.repeat(3e6));",
    write=f"require('fs').writeFileSync('shared.txt', {TEXT!r});",
    read="process.stdout.write(require('fs').readFileSync('shared.txt', 'utf8'));",
    echo="console.log(require('fs').readFileSync(0, 'utf8').split('\\n')[0]);",
    leave="process.exit(3)",
    shell="require('child_process').spawnSync('bash', ['junk.sh']); 0",
    rich="({ [Symbol.for('Jupyter.display')]: () => ({ 'text/html': '<b>x</b>' }) })",
    mime="text/html",
)
TYPESCRIPT = Spoken(
    language="typescript",
    template="python",
    keep="interface Box { value: number }\nlet x: Box = { value: 41 };",
    kept="x.value + 1",
    shown="42",
    split=JAVASCRIPT.split,
    say=JAVASCRIPT.say,
    fail="function f(): never { throw new RangeError('bad'); }\nf();",
    error="RangeError",
    loop=JAVASCRIPT.loop,
    stream=JAVASCRIPT.stream,
    flood=JAVASCRIPT.flood,
    write=JAVASCRIPT.write,
    read=JAVASCRIPT.read,
    echo=JAVASCRIPT.echo,
    leave=JAVASCRIPT.leave,
    shell=JAVASCRIPT.shell,
    rich=JAVASCRIPT.rich,
    mime=JAVASCRIPT.mime,
)
BASH = Spoken(
    language="bash",
    template="python",
    keep="x=41",
    kept="echo $((x + 1))",
    shown="",
    split="echo out; echo err >&2",
    say=f"echo '{TEXT}'",
    fail="f() { return 7; }; f",
    error="",
    loop="echo on; while true; do :; done",
    stream="echo a; until [ -e go ]; do sleep 0.01; done; echo b",
    flood="head -c 3000000 /dev/zero | tr '\\0' x",
    write=f"printf %s '{TEXT}' > shared.txt",
    read="cat shared.txt",
    echo='read -r line; echo "$line"',
    leave="exit 3",
    shell="bash junk.sh",
)
RUBY = Spoken(
    language="ruby",
    template="python",
    keep="x = 41",
    kept="x + 1",
    shown="42",
    split="puts 'out'; warn 'err'",
    say=f"puts {TEXT!r}",
    fail="def f = raise(ArgumentError, 'bad')\nf",
    error="ArgumentError",
    loop="puts 'on'; loop {}",
    stream="puts 'a'; sleep 0.01 until File.exist?('go'); puts 'b'",
    flood="print 'x' * 3_000_000",
    write=f"File.write('shared.txt', {TEXT!r})",
    read="print File.read('shared.txt')",
    echo="puts gets",
    leave="exit 3",
    shell="system('bash junk.sh')",
    rich="Class.new { def to_html = '<b>x</b>' }.new",
    mime="text/html",
)
R = Spoken(
    language="r",
    template="python",
    keep="x <- 41",
    kept="x + 1",
    shown="[1] 42",
    split="cat('out\\n'); message('err')",
    say=f"cat({TEXT!r}, '\\n', sep = '')",
    fail="f <- function() stop('bad')\nf()",
    error="simpleError",
    loop="cat('on\\n'); while (TRUE) {}",
    stream="cat('a\\n'); while (!file.exists('go')) Sys.sleep(0.01); cat('b\\n')",
    flood="cat(strrep('x', 3e6))",
    write=f"cat({TEXT!r}, file = 'shared.txt')",
    read="cat(readLines('shared.txt', warn = FALSE, encoding = 'UTF-8'))",
    echo="cat(readLines(file('stdin'), 1), '\\n')",
    leave="quit('no', 3)",
    shell="invisible(system('bash junk.sh'))",
    rich="plot(1:3)",
    mime="image/png",
)
JAVA = Spoken(
    language="java",
    template="python",
    keep="int x = 41;",
    kept="x + 1",
    shown="42",
    split='System.out.println("out"); System.err.println("err");',
    say=f'System.out.println("{TEXT}");',
    fail="void f() { throw new IllegalStateException(); }\nf();",
    error="IllegalStateException",
    loop='System.out.println("on"); while (true) {}',
    stream='System.out.println("a");\n'
    'while (!Files.exists(Path.of("go"))) Thread.sleep(5);\nSystem.out.println("b");',
    flood='System.out.print("x".repeat(3_000_000));',
    write=f'Files.writeString(Path.of("shared.txt"), "{TEXT}");',
    read='System.out.print(Files.readString(Path.of("shared.txt")));',
    echo="System.out.println(new Scanner(System.in).nextLine());",
    leave="System.exit(3);",
    shell='new ProcessBuilder("bash", "junk.sh").start().waitFor();',
)
SQL = Spoken(
    language="sql",
    template="data",
    keep="create or replace table x as select 41 as value",
    kept="select value + 1 as answer from x",
    shown="answer\n------\n42",
    split="",
    say=f"copy (select '{TEXT}') to '/dev/stdout' (header false)",
    fail="select * from nowhere",
    error="CatalogException",
    loop="",
    stream="",
    flood="",
    write=f"copy (select '{TEXT}' as line) to 'shared.txt' (header false)",
    read="copy (select * from read_csv('shared.txt', header = false)) "
    "to '/dev/stdout' (header false)",
    echo="",
    leave="",
    shell="",
    rich="select 1 as one",
    mime="text/html",
)
IR = Spoken(
    language="jupyter:ir",
    template="data",
    keep=R.keep,
    kept=R.kept,
    shown=R.shown,
    split=R.split,
    say=R.say,
    fail=R.fail,
    error="ERROR",
    loop=R.loop,
    stream="cat('a\\n'); flush.console()\nwhile (!file.exists('go')) Sys.sleep(0.01); cat('b\\n')",
    flood=R.flood,
    write=R.write,
    read=R.read,
    echo="cat(readline(), '\\n')",
    leave="",
    shell=R.shell,
    rich=R.rich,
    mime=R.mime,
)
SPOKEN = (JAVASCRIPT, TYPESCRIPT, BASH, RUBY, R, JAVA, SQL, IR)
