const SIZE: usize = 8;

fn place(columns: &mut Vec<usize>) -> u32 {
    let row = columns.len();
    if row == SIZE {
        return 1;
    }
    let mut count = 0;
    for column in 0..SIZE {
        let is_free = columns
            .iter()
            .enumerate()
            .all(|(r, &c)| c != column && c + row != column + r && c + r != column + row);
        if is_free {
            columns.push(column);
            count += place(columns);
            columns.pop();
        }
    }
    count
}

fn main() {
    println!("{}", place(&mut Vec::new()));
}
