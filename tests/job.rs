//! A stand-in for a trainer, for tests of what the runner does around one: it needs no libtorch and does what the variable
//! JOB says. Compiled by the tests themselves, without the standard library's shared parts, so that it runs in an image
//! made from nothing.

use std::fs;
use std::io::Write;
use std::time::Duration;

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
    fn raise(number: i32) -> i32;
    fn getuid() -> u32;
}

const SIGTERM: i32 = 15;

extern "C" fn on_term(_: i32) {
    println!("stopping");
    std::process::exit(143);
}

fn main() {
    let job = std::env::var("JOB").unwrap_or_default();
    let mut words = job.split(' ');
    let verb = words.next().unwrap_or_default();
    let number = words.next().and_then(|word| word.parse::<i64>().ok()).unwrap_or(0);
    let spec = fs::read_to_string(std::env::args().nth(3).expect("train --spec FILE")).expect("the spec");
    let batch = number_after(&spec, "\"batch\":");
    println!(
        "{{\"seq\":1,\"ts\":0,\"type\":\"started\",\"device\":\"cpu\",\"capacity\":null,\"driver\":null,\"libtorch\":\"none\",\
         \"params\":1,\"batch\":{batch},\"accum\":1,\"effective_batch\":{batch},\"steps\":3,\"samples\":3,\"resumed_from\":null}}"
    );
    match verb {
        "exit" => {
            eprintln!("error: the job was told to exit");
            std::process::exit(number as i32);
        }
        "raise" => {
            eprintln!("about to raise");
            unsafe { raise(number as i32) };
        }
        "segfault" => unsafe { std::ptr::write_volatile(8 as *mut u8, 1) },
        // Ends well when the batch is small enough, and is out of host memory otherwise.
        "fit" if batch > number => std::process::exit(43),
        "fit" => steps(3),
        // The same, but takes the memory until the kernel ends it.
        "eat" if batch > number => eat(),
        "eat" => steps(3),
        "sleep" => {
            unsafe { signal(SIGTERM, on_term as *const () as usize) };
            sleep();
        }
        "stubborn" => {
            unsafe { signal(SIGTERM, 1) };
            sleep();
        }
        "flood" => {
            let line = "x".repeat(1000);
            (0..number).for_each(|_| eprintln!("{line}"));
        }
        "probe" => probe(),
        other => panic!("JOB is {other:?}"),
    }
}

fn steps(count: u64) {
    for step in 1..=count {
        println!(
            "{{\"seq\":{},\"ts\":0,\"type\":\"step\",\"step\":{step},\"epoch\":0,\"samples\":{step},\"loss\":{},\"lr\":0,\
             \"grad_norm\":0,\"tokens\":1,\"ms\":1,\"allocated\":1,\"reserved\":1,\"peak\":1}}",
            step + 1,
            10.0 / step as f64
        );
    }
}

fn sleep() {
    eprintln!("sleeping");
    std::io::stderr().flush().ok();
    std::thread::sleep(Duration::from_secs(600));
}

fn eat() {
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    loop {
        eaten.push(vec![1; 8 << 20]);
    }
}

/// What a container lets a job do, as seen from inside.
fn probe() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
    };
    let interfaces = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let interfaces: Vec<&str> = interfaces.lines().skip(2).filter_map(|line| line.split(':').next()).map(str::trim).collect();
    let connected = std::net::TcpStream::connect_timeout(&([192, 0, 2, 1], 80).into(), Duration::from_secs(2)).is_ok();
    let words = [
        format!("uid {}", unsafe { getuid() }),
        format!("capabilities {}", field("CapEff:")),
        format!("bounding {}", field("CapBnd:")),
        format!("no_new_privileges {}", field("NoNewPrivs:")),
        format!("root_writable {}", fs::write("/probe", "x").is_ok()),
        format!("data_writable {}", fs::write("/pipe/data/train/0/x", "x").is_ok()),
        format!("run_writable {}", fs::write("/run/pipe/probe", "x").is_ok()),
        format!("interfaces {}", interfaces.join(",")),
        format!("connected {connected}"),
    ];
    for line in words {
        eprintln!("{line}");
    }
}

fn number_after(text: &str, key: &str) -> i64 {
    let rest = text.split(key).nth(1).unwrap_or("0").trim_start();
    rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
