#include <iostream>
#include <vector>

int main() {
    std::vector<int> primes;
    for (int n = 2; n < 100; n++) {
        bool is_prime = true;
        for (int p : primes) is_prime = is_prime && n % p;
        if (is_prime) primes.push_back(n);
    }
    for (int p : primes) std::cout << p << '\n';
}
