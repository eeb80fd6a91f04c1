#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int file(void) {
    char line[16];
    FILE *note = fopen("note.txt", "w+");
    fputs("kept\n", note);
    rewind(note);
    fputs(fgets(line, sizeof line, note), stdout);
    return 0;
}

static int connect_to(const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0) {
        perror("connect");
        return 1;
    }
    puts("connected");
    return 0;
}

int main(int count, char **given) {
    const char *name = given[1];
    if (!strcmp(name, "echo")) {
        for (int c; (c = getchar()) != EOF;) putchar(c);
    } else if (!strcmp(name, "words")) {
        for (int i = 2; i < count; i++) puts(given[i]);
    } else if (!strcmp(name, "text")) {
        puts("grüße 你好 🙂");
    } else if (!strcmp(name, "leave")) {
        return 3;
    } else if (!strcmp(name, "wait")) {
        for (;;) sleep(1);
    } else if (!strcmp(name, "spin")) {
        for (volatile long i = 0;; i++) {}
    } else if (!strcmp(name, "hog")) {
        for (;;) memset(malloc(1 << 20), 1, 1 << 20);
    } else if (!strcmp(name, "bomb")) {
        for (;;) {
            int pid = fork();
            if (pid < 0) return 1;
            if (pid == 0) pause();
        }
    } else if (!strcmp(name, "flood")) {
        for (int i = 0; i < 100000; i++) puts("a line of output");
    } else if (!strcmp(name, "file")) {
        return file();
    } else if (!strcmp(name, "connect")) {
        return connect_to(given[2]);
    }
    return 0;
}
