import java.util.Scanner;
import java.util.TreeMap;

public class WordCount {
    public static void main(String[] args) {
        var counts = new TreeMap<String, Integer>();
        new Scanner(System.in).forEachRemaining(word -> counts.merge(word, 1, Integer::sum));
        counts.forEach((word, count) -> System.out.println(word + " " + count));
    }
}
