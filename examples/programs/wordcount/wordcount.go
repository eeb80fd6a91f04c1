package main

import (
	"bufio"
	"fmt"
	"os"
	"sort"
)

func main() {
	counts := map[string]int{}
	words := []string{}
	scanner := bufio.NewScanner(os.Stdin)
	scanner.Split(bufio.ScanWords)
	for scanner.Scan() {
		word := scanner.Text()
		if counts[word] == 0 {
			words = append(words, word)
		}
		counts[word]++
	}
	sort.Strings(words)
	for _, word := range words {
		fmt.Println(word, counts[word])
	}
}
