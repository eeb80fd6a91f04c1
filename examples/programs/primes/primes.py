for n in range(2, 100):
    if all(n % d for d in range(2, int(n**0.5) + 1)):
        print(n)
