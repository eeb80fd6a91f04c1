#include <stdio.h>

static void quicksort(long *from, long *to) {
    if (from >= to) return;
    long pivot = from[(to - from) / 2], *low = from, *high = to;
    while (low <= high) {
        while (*low < pivot) low++;
        while (*high > pivot) high--;
        if (low <= high) {
            long swapped = *low;
            *low++ = *high;
            *high-- = swapped;
        }
    }
    quicksort(from, high);
    quicksort(low, to);
}

int main(void) {
    long numbers[1000];
    int count = 0;
    while (count < 1000 && scanf("%ld", &numbers[count]) == 1) count++;
    if (count) quicksort(numbers, numbers + count - 1);
    for (int i = 0; i < count; i++) printf("%ld\n", numbers[i]);
}
