def place(size: int, columns: tuple[int, ...] = ()) -> int:
    """Count the ways to put a queen into each of the rows that are left."""
    if len(columns) == size:
        return 1
    return sum(
        place(size, (*columns, column))
        for column in range(size)
        if all(
            column != other and abs(column - other) != len(columns) - row
            for row, other in enumerate(columns)
        )
    )


print(place(8))
