fun main() {
    for (n in 1..30) {
        val word = (if (n % 3 == 0) "Fizz" else "") + (if (n % 5 == 0) "Buzz" else "")
        println(if (word.isEmpty()) n else word)
    }
}
