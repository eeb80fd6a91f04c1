import java.util.Scanner;

public class Sorting {
    static void quicksort(int[] numbers, int from, int to) {
        if (from >= to) return;
        int pivot = numbers[(from + to) / 2], low = from, high = to;
        while (low <= high) {
            while (numbers[low] < pivot) low++;
            while (numbers[high] > pivot) high--;
            if (low <= high) {
                int swapped = numbers[low];
                numbers[low++] = numbers[high];
                numbers[high--] = swapped;
            }
        }
        quicksort(numbers, from, high);
        quicksort(numbers, low, to);
    }

    public static void main(String[] args) {
        int[] numbers = new Scanner(System.in).tokens().mapToInt(Integer::parseInt).toArray();
        quicksort(numbers, 0, numbers.length - 1);
        for (int n : numbers) System.out.println(n);
    }
}
