fn steps(n: u64) -> u32 {
    match n {
        1 => 0,
        _ if n % 2 == 1 => 1 + steps(3 * n + 1),
        _ => 1 + steps(n / 2),
    }
}

fn main() {
    for n in 1..=30 {
        println!("{} {}", n, steps(n));
    }
}
