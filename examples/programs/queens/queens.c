#include <stdio.h>

enum { ALL = (1 << 8) - 1 };

static int place(unsigned columns, unsigned left, unsigned right) {
    if (columns == ALL) return 1;
    int count = 0;
    for (unsigned free = ALL & ~(columns | left | right); free; free &= free - 1) {
        unsigned queen = free & -free;
        count += place(columns | queen, (left | queen) << 1, (right | queen) >> 1);
    }
    return count;
}

int main(void) {
    printf("%d\n", place(0, 0, 0));
}
