fun steps(n: Long): Int = if (n == 1L) 0 else 1 + steps(if (n % 2 == 1L) 3 * n + 1 else n / 2)

fun main() {
    for (n in 1..30) println("$n ${steps(n.toLong())}")
}
