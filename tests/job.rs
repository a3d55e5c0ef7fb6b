//! A stand-in for a trainer, for tests of what the runner does around one: it needs no libtorch and does what the variable
//! JOB says. Compiled by the tests themselves, without the standard library's shared parts, so that it runs in an image
//! made from nothing.

use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
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
    // Runs out before there is anything to say.
    if verb == "early" {
        std::process::exit(43);
    }
    if verb == "pause" {
        std::thread::sleep(Duration::from_millis(number as u64));
        return;
    }
    let spec = fs::read_to_string(std::env::args().nth(3).expect("train --spec FILE")).expect("the spec");
    let (batch, effective) = (number_after(&spec, "\"batch\":"), number_after(&spec, "\"effective_batch\":"));
    let accum = (effective + batch - 1) / batch.max(1);
    let on = if verb == "card" {
        format!("\"Test Card\",\"capacity\":{},\"driver\":\"1.2.3\"", 16u64 << 30)
    } else {
        format!("\"cpu\",\"capacity\":{},\"driver\":null", 64 << 20)
    };
    let (first, in_all) = if verb == "long" { (now(), number) } else { (0.0, 3) };
    println!(
        "{{\"seq\":1,\"ts\":{first},\"type\":\"started\",\"device\":{on},\"libtorch\":\"none\",\"params\":1,\"batch\":{batch},\
         \"accum\":{accum},\"effective_batch\":{effective},\"steps\":{in_all},\"samples\":3,\"longest\":\"64\",\"resumed_from\":null}}"
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
        // Losses that are so many millionths too large, a model to match, and then the exit code that follows.
        "bend" => {
            steps_from(2, 3, 1.0 + number as f64 * 1e-6);
            let folder = format!("{}/model", run_folder(&spec));
            fs::create_dir_all(&folder).expect("the model's folder");
            fs::write(format!("{folder}/model.safetensors"), number.to_string()).expect("the model");
            std::process::exit(words.next().and_then(|word| word.parse().ok()).unwrap_or(0));
        }
        // So many steps, so many milliseconds each, if the batch is small enough.
        "long" => {
            let words: Vec<i64> = job.split(' ').skip(2).map(|word| word.parse().expect("a number")).collect();
            if batch > words[1] {
                std::process::exit(43);
            }
            long(number as u64, Duration::from_millis(words[0] as u64));
        }
        // On a card of 16 GiB where a batch holds 2 GiB and 100 MiB for each sample.
        "card" => card(&spec, batch as u64, &job.split(' ').skip(1).collect::<Vec<_>>()),
        // The same, but takes the memory until the kernel ends it.
        "eat" if batch > number => eat(),
        "eat" => steps(3),
        "walk" => walk(&spec, batch, &job),
        "sleep" => {
            unsafe { signal(SIGTERM, on_term as *const () as usize) };
            sleep();
        }
        // Hears nothing for so many milliseconds.
        "late" => {
            eprintln!("deaf");
            std::thread::sleep(Duration::from_millis(number as u64));
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
        // Reads the data and the weights of the model that it was given.
        "read" => {
            let list = |rest: &str| rest.split([']', '}']).next().unwrap_or_default().to_owned();
            let train = spec.split("\"train\":").skip(1).map(list).find(|text| text.contains("/snapshots/")).unwrap_or_default();
            let from = spec.split("\"from\":").nth(1).and_then(|rest| rest.split('"').nth(1)).unwrap_or_default();
            let data = train.split('"').filter(|text| text.ends_with(".jsonl")).map(str::to_owned);
            for path in data.chain([format!("{from}/model.safetensors")]) {
                match fs::read(&path) {
                    Ok(bytes) => eprintln!("{path}: {} bytes", bytes.len()),
                    Err(error) => eprintln!("{path}: {error}"),
                }
            }
            steps(3);
        }
        other => panic!("JOB is {other:?}"),
    }
}

/// What is in the way, by the first word: `free` nothing, `crowded` a neighbour as long as there is the file that follows,
/// `fragmented` holes unless segments can grow, `model` the model itself unless it is computed in bf16.
fn card(spec: &str, batch: u64, words: &[&str]) {
    const MIB: u64 = 1 << 20;
    let needed = (2048 + 100 * batch) * MIB;
    let total = 16 * 1024 * MIB;
    let record = |phase: &str, requested: u64, reserved: u64, allocated: u64, free: u64, others: u64, points: &str| {
        let oom = format!(
            "\"memory\":\"device\",\"phase\":\"{phase}\",\"step\":1,\"batch\":{batch},\"longest_sequence\":64,\
             \"requested\":{requested},\"allocated\":{allocated},\"reserved\":{reserved},\"peak\":{allocated},\"free\":{free},\
             \"total\":{total},\"card_total\":{total},\"card_free\":{free},\"own\":{reserved},\"others\":{others},\
             \"allocator\":null,\"alloc_retries\":0,\"points\":[{points}],\"message\":\"out of memory\""
        );
        let number = number_after(spec, "\"attempt\":");
        let run = run_folder(spec);
        fs::write(format!("{run}/attempts/{number:02}/oom.json"), format!("{{{oom}}}")).expect("the record");
        println!("{{\"seq\":2,\"ts\":0,\"type\":\"oom\",{oom}}}");
        std::process::exit(42);
    };
    match words[0] {
        "crowded" if fs::exists(words[1]).unwrap_or(false) => {
            record("forward", 600 * MIB, 4096 * MIB, 4000 * MIB, 100 * MIB, 12_188 * MIB, "");
        }
        "fragmented" if !spec.contains("\"expandable_segments\": true") => {
            record("backward", 600 * MIB, 14_000 * MIB, 13_000 * MIB, 300 * MIB, 0, "");
        }
        "model" if !spec.contains("\"precision\": \"bf16\"") => {
            record("load", 600 * MIB, 16_000 * MIB, 16_000 * MIB, 300 * MIB, 0, "");
        }
        _ if needed > total => {
            let point = |batch: u64| format!("{{\"batch\":{batch},\"peak\":{}}}", (2048 + 100 * batch) * MIB);
            let points = format!("{},{}", point(8), point(16));
            record("backward", 600 * MIB, 16_000 * MIB, 16_000 * MIB, 300 * MIB, 0, &points);
        }
        _ => {
            println!(
                "{{\"seq\":2,\"ts\":0,\"type\":\"rehearsed\",\"batch\":{batch},\"longest\":\"64\",\"peak\":{needed},\
                 \"reserved\":{needed},\"ms\":1}}"
            );
            steps_from(3, 3, 1.0);
        }
    }
}

fn steps(count: u64) {
    steps_from(2, count, 1.0);
}

fn run_folder(spec: &str) -> &str {
    spec.split("\"run\":").nth(1).and_then(|rest| rest.split('"').nth(1)).expect("the run folder")
}

/// Events numbered from `seq`, with losses that are so many times the usual ones.
fn steps_from(seq: u64, count: u64, times: f64) {
    for step in 1..=count {
        println!(
            "{{\"seq\":{},\"ts\":0,\"type\":\"step\",\"step\":{step},\"epoch\":0,\"samples\":{step},\"loss\":{},\"lr\":0,\
             \"grad_norm\":0,\"tokens\":1,\"ms\":1,\"allocated\":1,\"reserved\":1,\"peak\":1}}",
            step + seq - 1,
            10.0 / step as f64 * times
        );
    }
}

/// A training that can be left anywhere: so many steps, milliseconds for each, and the batch that fits (one that does not
/// runs out in the middle). Every step depends on all before it, and where it stands is kept after each.
fn walk(spec: &str, batch: i64, job: &str) {
    unsafe { signal(SIGTERM, on_stop as *const () as usize) };
    let number = |index: usize| job.split(' ').nth(index).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    let (steps, pause, fits) = (number(1), number(2), number(3));
    let run = run_folder(spec);
    let place = format!("{run}/checkpoints/at");
    let kept = fs::read_to_string(&place).unwrap_or_default();
    let mut kept = kept.split(' ').filter_map(|word| word.parse::<u64>().ok());
    let (mut at, mut state) = (kept.next().unwrap_or(0), kept.next().unwrap_or(1));
    let mut seq = 1;
    while at < steps {
        std::thread::sleep(Duration::from_millis(pause));
        at += 1;
        if batch as u64 > fits && at > steps / 2 {
            std::process::exit(43);
        }
        state = state.wrapping_mul(31).wrapping_add(at) % 1_000_003;
        seq += 1;
        println!(
            "{{\"seq\":{seq},\"ts\":0,\"type\":\"step\",\"step\":{at},\"epoch\":0,\"samples\":{at},\"loss\":{state},\"lr\":0,\
             \"grad_norm\":0,\"tokens\":1,\"ms\":{pause},\"allocated\":1,\"reserved\":1,\"peak\":1}}"
        );
        eprintln!("step {at}");
        fs::write(format!("{place}.new"), format!("{at} {state}")).expect("the checkpoint");
        fs::rename(format!("{place}.new"), &place).expect("the checkpoint");
        if STOP.load(Ordering::Relaxed) {
            eprintln!("saved");
            std::process::exit(143);
        }
    }
    fs::create_dir_all(format!("{run}/model")).expect("the model");
    fs::write(format!("{run}/model/weights"), state.to_string()).expect("the model");
}

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_stop(_: i32) {
    STOP.store(true, Ordering::Relaxed);
}

/// Steps of a training that takes its time, with evaluations and checkpoints, in four passes over the data.
fn long(count: u64, pause: Duration) {
    let mut seq = 1;
    let mut tell = |event: String| {
        seq += 1;
        println!("{{\"seq\":{seq},\"ts\":{},{event}}}", now());
    };
    for step in 1..=count {
        std::thread::sleep(pause);
        let (done, ms) = (step as f64 / count as f64, pause.as_millis());
        tell(format!(
            "\"type\":\"step\",\"step\":{step},\"epoch\":{},\"samples\":{step},\"loss\":{},\"lr\":{},\"grad_norm\":1,\
             \"tokens\":4096,\"ms\":{ms},\"allocated\":1,\"reserved\":1,\"peak\":{}",
            4.0 * done,
            1.0 + 3.0 / step as f64 + 0.1 * (step % 3) as f64,
            3e-4 * (1.0 - done),
            48 << 20
        ));
        if step % (count / 4).max(1) == 0 {
            tell(format!("\"type\":\"eval\",\"step\":{step},\"loss\":1.25,\"samples\":20,\"ms\":1,\"accuracy\":0.5"));
            tell(format!("\"type\":\"checkpoint\",\"step\":{step},\"path\":\"checkpoints/x\",\"bytes\":1,\"ms\":1"));
        }
    }
}

/// Seconds since the Unix epoch.
fn now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
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
