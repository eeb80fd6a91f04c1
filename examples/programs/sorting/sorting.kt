fun quicksort(numbers: List<Int>): List<Int> {
    if (numbers.size < 2) return numbers
    val pivot = numbers.first()
    val (low, high) = numbers.drop(1).partition { it < pivot }
    return quicksort(low) + pivot + quicksort(high)
}

fun main() {
    val numbers = generateSequence { readLine() }
        .flatMap { it.split(" ").asSequence() }
        .filter { it.isNotEmpty() }
        .map { it.toInt() }
        .toList()
    quicksort(numbers).forEach { println(it) }
}
