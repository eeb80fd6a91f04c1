using System;

class FizzBuzz {
    static void Main() {
        for (int n = 1; n <= 30; n++) {
            string word = (n % 3 == 0 ? "Fizz" : "") + (n % 5 == 0 ? "Buzz" : "");
            Console.WriteLine(word == "" ? n.ToString() : word);
        }
    }
}
