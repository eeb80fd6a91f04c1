package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	rest := os.Args[2:]
	switch os.Args[1] {
	case "echo":
		io.Copy(os.Stdout, os.Stdin)
	case "words":
		for _, word := range rest {
			fmt.Println(word)
		}
	case "text":
		fmt.Println("grüße 你好 🙂")
	case "leave":
		os.Exit(3)
	case "wait":
		for {
			time.Sleep(time.Second)
		}
	case "spin":
		for {
		}
	case "hog":
		var held [][]byte
		for {
			block := make([]byte, 1<<20)
			for i := range block {
				block[i] = 1
			}
			held = append(held, block)
		}
	case "bomb":
		for {
			check(exec.Command("sleep", "60").Start())
		}
	case "flood":
		for i := 0; i < 100000; i++ {
			fmt.Println("a line of output")
		}
	case "file":
		check(os.WriteFile("note.txt", []byte("kept\n"), 0o644))
		data, err := os.ReadFile("note.txt")
		check(err)
		os.Stdout.Write(data)
	case "connect":
		_, err := net.DialTimeout("tcp", "127.0.0.1:"+rest[0], 5*time.Second)
		check(err)
		fmt.Println("connected")
	}
}
