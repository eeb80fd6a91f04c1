using System;
using System.Collections.Generic;
using System.Linq;

class Queens {
    const int Size = 8;

    static bool IsFree(List<int> columns, int column) {
        return !columns.Where((c, row) =>
            c == column || Math.Abs(c - column) == columns.Count - row).Any();
    }

    static int Place(List<int> columns) {
        if (columns.Count == Size) return 1;
        return Enumerable.Range(0, Size)
            .Where(column => IsFree(columns, column))
            .Sum(column => Place(new List<int>(columns) { column }));
    }

    static void Main() {
        Console.WriteLine(Place(new List<int>()));
    }
}
