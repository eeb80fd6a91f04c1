public class FizzBuzz {
    public static void main(String[] args) {
        for (int n = 1; n <= 30; n++) {
            String word = (n % 3 == 0 ? "Fizz" : "") + (n % 5 == 0 ? "Buzz" : "");
            System.out.println(word.isEmpty() ? String.valueOf(n) : word);
        }
    }
}
