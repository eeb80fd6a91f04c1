#include <stdio.h>

int main(void) {
    char is_composite[100] = {0};
    for (int n = 2; n < 100; n++) {
        if (is_composite[n]) continue;
        printf("%d\n", n);
        for (int m = n * n; m < 100; m += n) is_composite[m] = 1;
    }
}
