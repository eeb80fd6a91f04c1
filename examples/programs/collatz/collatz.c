#include <stdio.h>

static int steps(unsigned long n) {
    return n == 1 ? 0 : 1 + steps(n % 2 ? 3 * n + 1 : n / 2);
}

int main(void) {
    for (int n = 1; n <= 30; n++) printf("%d %d\n", n, steps(n));
}
