#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    char word[64];
    int count;
};

static int by_word(const void *a, const void *b) {
    return strcmp(((const struct entry *) a)->word, ((const struct entry *) b)->word);
}

int main(void) {
    static struct entry entries[1000];
    size_t used = 0, i;
    char word[64];
    while (used < 1000 && scanf("%63s", word) == 1) {
        for (i = 0; i < used && strcmp(entries[i].word, word); i++);
        if (i == used) strcpy(entries[used++].word, word);
        entries[i].count++;
    }
    qsort(entries, used, sizeof entries[0], by_word);
    for (i = 0; i < used; i++) printf("%s %d\n", entries[i].word, entries[i].count);
}
