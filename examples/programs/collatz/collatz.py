def steps(n: int) -> int:
    if n == 1:
        return 0
    return 1 + steps(3 * n + 1 if n % 2 else n // 2)


for n in range(1, 31):
    print(n, steps(n))
