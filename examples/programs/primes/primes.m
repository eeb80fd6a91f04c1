printf("%d\n", primes(99));
