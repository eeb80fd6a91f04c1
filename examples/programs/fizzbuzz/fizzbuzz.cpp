#include <iostream>
#include <string>

int main() {
    for (int n = 1; n <= 30; n++) {
        std::string word = n % 3 ? "" : "Fizz";
        if (n % 5 == 0) word += "Buzz";
        std::cout << (word.empty() ? std::to_string(n) : word) << '\n';
    }
}
