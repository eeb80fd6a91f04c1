using System;
using System.Collections.Generic;
using System.Linq;

class Sorting {
    static IEnumerable<int> Quicksort(IList<int> numbers) {
        if (numbers.Count == 0) return numbers;
        int pivot = numbers[0];
        var parts = numbers.Skip(1).ToLookup(n => n < pivot);
        return Quicksort(parts[true].ToList()).Append(pivot).Concat(Quicksort(parts[false].ToList()));
    }

    static void Main() {
        var numbers = new List<int>();
        for (string line; (line = Console.ReadLine()) != null;) numbers.Add(int.Parse(line));
        foreach (int n in Quicksort(numbers)) Console.WriteLine(n);
    }
}
