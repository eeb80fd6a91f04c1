public class Queens {
    static final int ALL = (1 << 8) - 1;

    static int place(int columns, int left, int right) {
        if (columns == ALL) return 1;
        int count = 0;
        for (int free = ALL & ~(columns | left | right); free != 0; free &= free - 1) {
            int queen = free & -free;
            count += place(columns | queen, (left | queen) << 1, (right | queen) >> 1);
        }
        return count;
    }

    public static void main(String[] args) {
        System.out.println(place(0, 0, 0));
    }
}
