//! A card that libtorch was not built for is refused before anything starts. The card is the stand-in of `tests/nvml.rs`, the
//! library a made-up one that holds no code.

use crate::harness::{Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("compute_capability::{name}"), Needs::Nothing, test);
    test("a_card_too_old_is_refused", too_old);
    test("a_card_too_new_is_refused", too_new);
    test("a_supported_card_runs", fits);
    test("an_unknown_capability_is_not_refused", unknown);
    test("doctor_reports_it", doctor);
}

/// A folder with a card of this capability and a libtorch for these architectures; PTX has a `+`.
fn folder(card: &str, built_for: &[&str]) -> Folder {
    let folder = job::on_card("card free", "", card);
    folder.write("lib/libtorch_cuda.so", library(built_for));
    let path = format!("{}:{}", job::library().display(), folder.path().join("lib").display());
    folder.env("LD_LIBRARY_PATH", path)
}

const RUN: [&str; 6] = ["run", "job.yaml", "--engine", "process", "--set", "container.gpus=1"];

fn too_old() {
    let folder = folder("16384 16384 61\n", &["75", "80", "120"]);
    folder
        .pipe(&RUN)
        .exits(4)
        .says("Test Card has compute capability 6.1, but this libtorch was built for sm_75 sm_80 sm_120")
        .says("hint: ");
    assert!(!folder.has_runs());
    folder.pipe(&["run", "job.yaml", "--engine", "process", "--set", "container.gpus=0"]).exits(0);
}

fn too_new() {
    folder("16384 16384 120\n", &["75", "90", "100"]).pipe(&RUN).exits(4).says("compute capability 12.0");
    // PTX is for all that came later.
    folder("16384 16384 120\n", &["75", "90+"]).pipe(&RUN).exits(0);
    folder("16384 16384 80\n", &["75", "90+"]).pipe(&RUN).exits(4).says("sm_75 compute_90");
}

fn fits() {
    for (card, built_for) in [("120", "120"), ("89", "86"), ("121", "120")] {
        let folder = folder(&format!("16384 16384 {card}\n"), &["75", built_for]);
        folder.pipe(&RUN).exits(0);
    }
}

fn unknown() {
    folder("16384 16384\n", &["75"]).pipe(&RUN).exits(0);
    folder("16384 16384 120\n", &[]).pipe(&RUN).exits(0);
    let broken = folder("16384 16384 120\n", &["75"]);
    broken.write("lib/libtorch_cuda.so", "this is no library");
    broken.pipe(&RUN).exits(0);
    job::on_card("card free", "", "16384 16384 120\n").pipe(&RUN).exits(0);
}

fn doctor() {
    let folder = folder("16384 16384 61\n", &["75"]);
    let checks = folder.pipe(&["doctor", "--json"]).exits(4).json();
    let card = checks.as_array().unwrap().iter().find(|check| check["name"] == "card").unwrap().clone();
    assert_eq!(card["status"], "missing");
    assert_eq!(card["found"], "Test Card, driver 1.2.3, compute capability 6.1, 16.0 GiB free of 16.0 GiB");
    assert!(card["hint"].as_str().unwrap().contains("built for sm_75"), "{card:#}");
}

/// A shared library with nothing but a section of CUDA code: one part, with an empty entry for each architecture.
fn library(built_for: &[&str]) -> Vec<u8> {
    let mut entries = Vec::new();
    for word in built_for {
        let mut entry = [0; 64];
        entry[0] = if word.ends_with('+') { 1 } else { 2 };
        entry[4] = 64;
        let number: u32 = word.trim_end_matches('+').parse().unwrap();
        entry[28..32].copy_from_slice(&number.to_le_bytes());
        entries.extend(entry);
    }
    let mut code = [0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0].to_vec();
    code.extend((entries.len() as u64).to_le_bytes());
    code.extend(entries);
    let names = b"\0.nv_fatbin\0.names\0";
    // The head of the file, then the code, the names of the sections, and the table of sections: none, code, names.
    let table = (64 + code.len() + names.len()).next_multiple_of(8);
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    file.resize(16, 0);
    for half in [3u16, 62] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes());
    for long in [0, 0, table as u64] {
        file.extend(long.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 0, 64, 3, 2] {
        file.extend(half.to_le_bytes());
    }
    file.extend(&code);
    file.extend(names);
    file.resize(table, 0);
    file.extend([0; 64]);
    for (name, kind, at, size) in [(1u32, 1u32, 64, code.len()), (12, 3, 64 + code.len(), names.len())] {
        file.extend(name.to_le_bytes());
        file.extend(kind.to_le_bytes());
        for long in [0, 0, at as u64, size as u64, 0, 1, 0] {
            // Link and information are two short numbers, which are nought as one long one is.
            file.extend(long.to_le_bytes());
        }
    }
    file
}
