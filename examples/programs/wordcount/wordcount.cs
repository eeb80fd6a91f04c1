using System;
using System.Linq;

class WordCount {
    static void Main() {
        var words = Console.In.ReadToEnd()
            .Split((char[]) null, StringSplitOptions.RemoveEmptyEntries);
        foreach (var group in words.GroupBy(word => word).OrderBy(group => group.Key, StringComparer.Ordinal))
            Console.WriteLine("{0} {1}", group.Key, group.Count());
    }
}
