const val ALL = (1 shl 8) - 1

fun place(columns: Int, left: Int, right: Int): Int {
    if (columns == ALL) return 1
    var count = 0
    var free = ALL and (columns or left or right).inv()
    while (free != 0) {
        val queen = free and -free
        count += place(columns or queen, (left or queen) shl 1, (right or queen) shr 1)
        free = free and (free - 1)
    }
    return count
}

fun main() {
    println(place(0, 0, 0))
}
