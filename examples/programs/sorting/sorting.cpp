#include <algorithm>
#include <iostream>
#include <iterator>
#include <vector>

template <typename Iterator>
void quicksort(Iterator from, Iterator to) {
    if (from == to) return;
    auto pivot = *from;
    auto middle = std::partition(from + 1, to, [=](auto n) { return n < pivot; });
    std::iter_swap(from, middle - 1);
    quicksort(from, middle - 1);
    quicksort(middle, to);
}

int main() {
    std::istream_iterator<long> input(std::cin), end;
    std::vector<long> numbers(input, end);
    quicksort(numbers.begin(), numbers.end());
    for (auto n : numbers) std::cout << n << '\n';
}
