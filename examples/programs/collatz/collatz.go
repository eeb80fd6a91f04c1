package main

import "fmt"

func steps(n int) int {
	switch {
	case n == 1:
		return 0
	case n%2 == 1:
		return 1 + steps(3*n+1)
	default:
		return 1 + steps(n/2)
	}
}

func main() {
	for n := 1; n <= 30; n++ {
		fmt.Println(n, steps(n))
	}
}
