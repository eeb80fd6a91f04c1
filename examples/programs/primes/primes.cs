using System;
using System.Linq;

class Primes {
    static void Main() {
        foreach (int n in Enumerable.Range(2, 98))
            if (Enumerable.Range(2, (int) Math.Sqrt(n) - 1).All(d => n % d != 0))
                Console.WriteLine(n);
    }
}
