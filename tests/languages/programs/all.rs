use std::io::{self, Write};
use std::net::TcpStream;
use std::process::{self, Command};
use std::{env, fs, thread, time::Duration};

fn main() {
    let given: Vec<String> = env::args().collect();
    match given[1].as_str() {
        "echo" => {
            io::copy(&mut io::stdin(), &mut io::stdout()).unwrap();
        }
        "words" => given[2..].iter().for_each(|word| println!("{}", word)),
        "text" => println!("grüße 你好 🙂"),
        "leave" => process::exit(3),
        "wait" => loop {
            thread::sleep(Duration::from_secs(1));
        },
        "spin" => loop {
            std::hint::spin_loop();
        },
        "hog" => {
            let mut held: Vec<Vec<u8>> = Vec::new();
            loop {
                held.push(vec![1; 1 << 20]);
            }
        }
        "bomb" => loop {
            Command::new("sleep").arg("60").spawn().unwrap();
        },
        "flood" => {
            for _ in 0..100_000 {
                println!("a line of output");
            }
        }
        "file" => {
            fs::write("note.txt", "kept\n").unwrap();
            io::stdout().write_all(&fs::read("note.txt").unwrap()).unwrap();
        }
        "connect" => {
            TcpStream::connect(format!("127.0.0.1:{}", given[2])).unwrap();
            println!("connected");
        }
        _ => process::exit(99),
    }
}
