package main

import (
	"bufio"
	"fmt"
	"os"
)

func quicksort(numbers []int) {
	if len(numbers) < 2 {
		return
	}
	last := len(numbers) - 1
	middle := 0
	for i := range numbers[:last] {
		if numbers[i] < numbers[last] {
			numbers[i], numbers[middle] = numbers[middle], numbers[i]
			middle++
		}
	}
	numbers[middle], numbers[last] = numbers[last], numbers[middle]
	quicksort(numbers[:middle])
	quicksort(numbers[middle+1:])
}

func main() {
	var numbers []int
	in := bufio.NewReader(os.Stdin)
	for {
		var n int
		if _, err := fmt.Fscan(in, &n); err != nil {
			break
		}
		numbers = append(numbers, n)
	}
	quicksort(numbers)
	for _, n := range numbers {
		fmt.Println(n)
	}
}
