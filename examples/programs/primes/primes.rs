fn main() {
    (2..100)
        .filter(|n| (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0))
        .for_each(|n| println!("{}", n));
}
