using System;

class Collatz {
    static int Steps(long n) {
        return n == 1 ? 0 : 1 + Steps(n % 2 == 1 ? 3 * n + 1 : n / 2);
    }

    static void Main() {
        for (int n = 1; n <= 30; n++) Console.WriteLine("{0} {1}", n, Steps(n));
    }
}
