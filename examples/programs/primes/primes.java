import java.util.stream.IntStream;

public class Primes {
    public static void main(String[] args) {
        IntStream.range(2, 100)
            .filter(n -> IntStream.rangeClosed(2, (int) Math.sqrt(n)).allMatch(d -> n % d != 0))
            .forEach(System.out::println);
    }
}
