public class Collatz {
    static int steps(long n) {
        return n == 1 ? 0 : 1 + steps(n % 2 == 1 ? 3 * n + 1 : n / 2);
    }

    public static void main(String[] args) {
        for (int n = 1; n <= 30; n++) System.out.println(n + " " + steps(n));
    }
}
