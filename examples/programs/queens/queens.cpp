#include <bitset>
#include <iostream>

template <int size>
class Board {
    std::bitset<size> columns;
    std::bitset<2 * size> rising, falling;

public:
    int place(int row = 0) {
        if (row == size) return 1;
        int count = 0;
        for (int column = 0; column < size; column++) {
            auto up = rising[row + column], down = falling[row - column + size];
            if (columns[column] || up || down) continue;
            columns[column] = up = down = true;
            count += place(row + 1);
            columns[column] = up = down = false;
        }
        return count;
    }
};

int main() {
    std::cout << Board<8>().place() << '\n';
}
