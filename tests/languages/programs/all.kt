import java.io.File
import java.net.Socket

fun main(args: Array<String>) {
    when (args[0]) {
        "echo" -> System.`in`.copyTo(System.out)
        "words" -> args.drop(1).forEach { println(it) }
        "text" -> println("grüße 你好 🙂")
        "leave" -> System.exit(3)
        "wait" -> while (true) Thread.sleep(1000)
        "spin" -> while (true) { }
        "hog" -> hog()
        "bomb" -> while (true) ProcessBuilder("sleep", "60").start()
        "flood" -> repeat(100_000) { println("a line of output") }
        "file" -> {
            File("note.txt").writeText("kept\n")
            print(File("note.txt").readText())
        }
        "connect" -> {
            Socket("127.0.0.1", args[1].toInt()).close()
            println("connected")
        }
    }
    System.out.flush()
}

fun hog() {
    val held = mutableListOf<ByteArray>()
    while (true) held.add(ByteArray(1 shl 20) { 1 })
}
