import os
import socket
import sys
import time


def echo() -> None:
    sys.stdout.write(sys.stdin.read())


def words() -> None:
    for word in sys.argv[2:]:
        print(word)


def text() -> None:
    print("grüße 你好 🙂")


def leave() -> None:
    sys.exit(3)


def wait() -> None:
    while True:
        time.sleep(1)


def spin() -> None:
    while True:
        pass


def hog() -> None:
    held = []
    while True:
        held.append(bytearray(b"x" * (1 << 20)))


def bomb() -> None:
    while True:
        if os.fork() == 0:
            time.sleep(60)


def flood() -> None:
    for _ in range(100_000):
        print("a line of output")


def file() -> None:
    with open("note.txt", "w") as note:
        note.write("kept\n")
    print(open("note.txt").read(), end="")


def connect() -> None:
    socket.create_connection(("127.0.0.1", int(sys.argv[2])), 5)
    print("connected")


globals()[sys.argv[1]]()
