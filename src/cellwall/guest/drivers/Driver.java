// Runs Java for a context by JShell: one request, one answer, state kept in between.
// Started by `interpreter.py` with the paths of two pipes. No pipe is open while caller code runs.
import java.io.BufferedInputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;
import sun.misc.Signal;

public class Driver {
    private static final String[] IMPORTS = {
        "java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.time.*", "java.util.*",
        "java.util.concurrent.*", "java.util.function.*", "java.util.regex.*", "java.util.stream.*",
    };
    private static final PrintStream OUT = stream(java.io.FileDescriptor.out);
    private static final PrintStream ERR = stream(java.io.FileDescriptor.err);

    private final String requests;
    private final String answers;
    private final JShell shell;
    private volatile boolean isInterrupted;
    private int count;
    private boolean isRunning;

    private Driver(String requests, String answers) {
        this.requests = requests;
        this.answers = answers;
        if (System.getenv("CELLWALL_JAVA_PROPERTIES") != null) {
            System.getenv().forEach(System.getProperties()::putIfAbsent);
        }
        shell = JShell.builder().executionEngine("local").build();
        for (String each : IMPORTS) {
            shell.eval("import " + each + ";");
        }
    }

    public static void main(String[] words) throws Exception {
        System.setOut(OUT);
        System.setErr(ERR);
        Driver driver = new Driver(words[0], words[1]);
        Signal.handle(new Signal("INT"), signal -> driver.interrupt());
        driver.say("\"ev\":\"ready\"");
        driver.serve();
    }

    private static PrintStream stream(java.io.FileDescriptor descriptor) {
        return new PrintStream(new FileOutputStream(descriptor), true, StandardCharsets.UTF_8);
    }

    private void interrupt() {
        int meant = note();
        // Between two snippets there is nothing to stop yet.
        while (stop(meant)) {
            try {
                Thread.sleep(20);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    // Which cell it is meant for.
    private synchronized int note() {
        isInterrupted = isRunning;
        return count;
    }

    // The next cell may have begun since: what was meant for this one must not end it.
    private synchronized boolean stop(int meant) {
        if (!isRunning || count != meant) {
            return false;
        }
        shell.stop();
        return true;
    }

    private synchronized void begin() {
        isInterrupted = false;
        isRunning = true;
        count++;
    }

    private synchronized void end() {
        isRunning = false;
    }

    private void serve() throws IOException {
        while (true) {
            String line;
            try (var reader = Files.newBufferedReader(Path.of(requests))) {
                line = reader.readLine();
            }
            if (line == null) {
                Runtime.getRuntime().halt(0);
            }
            String[] fields = line.split("\t");
            // Buffered: the bare stream asks a pipe where it is, which a pipe cannot say.
            String place = fields[2].equals("-") ? "/dev/null" : fields[2];
            try (var stdin = new BufferedInputStream(new FileInputStream(place))) {
                System.setIn(stdin);
                cell(Files.readString(Path.of(fields[1])), fields[3].equals("1"));
            }
        }
    }

    private void cell(String source, boolean isDisplayed) throws IOException {
        begin();
        say("\"ev\":\"running\"");
        boolean raised;
        try {
            raised = run(source, isDisplayed);
        } finally {
            end();
        }
        OUT.flush();
        ERR.flush();
        say("\"ev\":\"done\",\"raised\":" + raised);
    }

    private boolean run(String source, boolean isDisplayed) throws IOException {
        String rest = source;
        SnippetEvent last = null;
        while (!rest.isBlank()) {
            var found = shell.sourceCodeAnalysis().analyzeCompletion(rest);
            String snippet = found.source() == null ? rest : found.source();
            rest = found.source() == null ? "" : found.remaining();
            if (found.completeness() == SourceCodeAnalysis.Completeness.EMPTY || isInterrupted) {
                break;
            }
            for (SnippetEvent event : shell.eval(snippet)) {
                if (event.causeSnippet() != null) {
                    continue;
                }
                if (isInterrupted) {
                    report("KeyboardInterrupt", "", "interrupted");
                    return true;
                }
                if (event.exception() != null) {
                    report(event.exception());
                    return true;
                }
                if (event.status() == Snippet.Status.REJECTED) {
                    reject(event.snippet());
                    return true;
                }
                last = event;
            }
        }
        if (isInterrupted) {
            report("KeyboardInterrupt", "", "interrupted");
            return true;
        }
        if (isDisplayed && last != null && isShown(last)) {
            say("\"ev\":\"display\",\"kind\":\"result\",\"data\":{\"text/plain\":"
                + json(last.value()) + "}");
        }
        return false;
    }

    private static boolean isShown(SnippetEvent event) {
        return event.snippet().kind() == Snippet.Kind.EXPRESSION
            || event.snippet().subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND
            ? event.value() != null
            : false;
    }

    private void report(JShellException error) throws IOException {
        String name = error instanceof EvalException
            ? ((EvalException) error).getExceptionClassName()
            : error.getClass().getName();
        StringBuilder trace = new StringBuilder(name);
        if (error.getMessage() != null) {
            trace.append(": ").append(error.getMessage());
        }
        for (StackTraceElement frame : error.getStackTrace()) {
            trace.append("\n    at ").append(frame.toString().replaceFirst("^REPL\\.\\$\\w+\\.", ""));
        }
        report(name.substring(name.lastIndexOf('.') + 1), String.valueOf(error.getMessage()),
            trace.toString());
    }

    private void reject(Snippet snippet) throws IOException {
        List<String> lines = new ArrayList<>();
        shell.diagnostics(snippet).filter(each -> each.isError()).forEach(each -> {
            long line = 1 + snippet.source().substring(0, (int) each.getStartPosition())
                .chars().filter(character -> character == '\n').count();
            lines.add("line " + line + ": " + each.getMessage(null));
        });
        String text = String.join("\n", lines);
        report("CompileError", text, "CompileError: " + text);
    }

    private void report(String name, String message, String trace) throws IOException {
        OUT.flush();
        ERR.println(trace);
        say("\"ev\":\"error\",\"name\":" + json(name) + ",\"value\":" + json(message)
            + ",\"traceback\":" + json(trace));
    }

    private void say(String fields) throws IOException {
        OUT.flush();
        try (var pipe = new FileOutputStream(answers)) {
            pipe.write(("{" + fields + "}\n").getBytes(StandardCharsets.UTF_8));
        }
    }

    private static String json(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\') {
                quoted.append('\\').append(each);
            } else if (each < 0x20 || Character.isSurrogate(each)) {
                quoted.append(String.format("\\u%04x", (int) each));
            } else {
                quoted.append(each);
            }
        }
        return quoted.append('"').toString();
    }
}
