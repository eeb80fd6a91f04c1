fun main() {
    (2 until 100)
        .filter { n -> (2 until n).takeWhile { it * it <= n }.all { n % it != 0 } }
        .forEach { println(it) }
}
