import java.io.IOException;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;

public class Conformance {
    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "echo" -> System.in.transferTo(System.out);
            case "words" -> { for (int i = 1; i < args.length; i++) System.out.println(args[i]); }
            case "text" -> System.out.println("grüße 你好 🙂");
            case "leave" -> System.exit(3);
            case "wait" -> { while (true) Thread.sleep(1000); }
            case "spin" -> { while (true) { } }
            case "hog" -> hog();
            case "bomb" -> { while (true) new ProcessBuilder("sleep", "60").start(); }
            case "flood" -> { for (int i = 0; i < 100_000; i++) System.out.println("a line of output"); }
            case "file" -> {
                Files.writeString(Path.of("note.txt"), "kept\n");
                System.out.print(Files.readString(Path.of("note.txt")));
            }
            case "connect" -> {
                new Socket("127.0.0.1", Integer.parseInt(args[1])).close();
                System.out.println("connected");
            }
        }
        System.out.flush();
    }

    static void hog() {
        var held = new ArrayList<byte[]>();
        while (true) {
            var block = new byte[1 << 20];
            java.util.Arrays.fill(block, (byte) 1);
            held.add(block);
        }
    }
}
