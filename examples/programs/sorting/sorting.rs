use std::io::{self, BufRead};

fn quicksort(numbers: &mut [i64]) {
    if numbers.len() < 2 {
        return;
    }
    let last = numbers.len() - 1;
    let mut middle = 0;
    for i in 0..last {
        if numbers[i] < numbers[last] {
            numbers.swap(i, middle);
            middle += 1;
        }
    }
    numbers.swap(middle, last);
    quicksort(&mut numbers[..middle]);
    quicksort(&mut numbers[middle + 1..]);
}

fn main() {
    let mut numbers: Vec<i64> = io::stdin()
        .lock()
        .lines()
        .map(|line| line.unwrap().trim().parse().unwrap())
        .collect();
    quicksort(&mut numbers);
    for n in numbers {
        println!("{}", n);
    }
}
