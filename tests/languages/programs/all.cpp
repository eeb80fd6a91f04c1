#include <arpa/inet.h>
#include <chrono>
#include <fstream>
#include <iostream>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

static int connect_to(int port) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, reinterpret_cast<sockaddr *>(&to), sizeof to) < 0) return 1;
    std::cout << "connected\n";
    return 0;
}

int main(int count, char **given) {
    std::string name = given[1];
    if (name == "echo") {
        std::cout << std::cin.rdbuf();
    } else if (name == "words") {
        for (int i = 2; i < count; i++) std::cout << given[i] << '\n';
    } else if (name == "text") {
        std::cout << "grüße 你好 🙂\n";
    } else if (name == "leave") {
        return 3;
    } else if (name == "wait") {
        for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
    } else if (name == "spin") {
        for (volatile long i = 0;; i = i + 1) {}
    } else if (name == "hog") {
        std::vector<std::vector<char>> held;
        for (;;) held.emplace_back(1 << 20, 'x');
    } else if (name == "bomb") {
        for (;;) {
            pid_t pid = fork();
            if (pid < 0) return 1;
            if (pid == 0) pause();
        }
    } else if (name == "flood") {
        for (int i = 0; i < 100000; i++) std::cout << "a line of output\n";
    } else if (name == "file") {
        std::ofstream("note.txt") << "kept\n";
        std::cout << std::ifstream("note.txt").rdbuf();
    } else if (name == "connect") {
        return connect_to(std::stoi(given[2]));
    }
}
