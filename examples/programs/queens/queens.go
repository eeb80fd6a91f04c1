package main

import "fmt"

const all = 1<<8 - 1

func place(columns, left, right int) int {
	if columns == all {
		return 1
	}
	count := 0
	for free := all &^ (columns | left | right); free != 0; free &= free - 1 {
		queen := free & -free
		count += place(columns|queen, (left|queen)<<1, (right|queen)>>1)
	}
	return count
}

func main() {
	fmt.Println(place(0, 0, 0))
}
