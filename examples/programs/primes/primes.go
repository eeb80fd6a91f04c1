package main

import "fmt"

func main() {
	sieve := make([]bool, 100)
	for n := 2; n < 100; n++ {
		if !sieve[n] {
			fmt.Println(n)
			for m := n * n; m < 100; m += n {
				sieve[m] = true
			}
		}
	}
}
