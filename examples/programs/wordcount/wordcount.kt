import java.util.TreeMap

fun main() {
    val counts = TreeMap<String, Int>()
    System.`in`.reader().forEachLine { line ->
        line.split(Regex("\\s+")).filter { it.isNotEmpty() }.forEach { counts.merge(it, 1, Int::plus) }
    }
    for ((word, count) in counts) println("$word $count")
}
