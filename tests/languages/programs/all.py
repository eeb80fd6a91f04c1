import os
import socket
import sys
import time


def echo():
    sys.stdout.write(sys.stdin.read())


def words():
    for word in sys.argv[2:]:
        print(word)


def text():
    print("grüße 你好 🙂")


def leave():
    sys.exit(3)


def wait():
    while True:
        time.sleep(1)


def spin():
    while True:
        pass


def hog():
    held = []
    while True:
        held.append(bytearray(b"x" * (1 << 20)))


def bomb():
    while True:
        if os.fork() == 0:
            time.sleep(60)


def flood():
    for _ in range(100_000):
        print("a line of output")


def file():
    with open("note.txt", "w") as note:
        note.write("kept\n")
    print(open("note.txt").read(), end="")


def connect():
    socket.create_connection(("127.0.0.1", int(sys.argv[2])), 5)
    print("connected")


globals()[sys.argv[1]]()
