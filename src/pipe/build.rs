//! Compiles `pipe-job`, the first process of every job, as a static program, which `pipe` then carries inside itself.

use std::path::{Path, PathBuf};
use std::process::Command;

const MANIFEST: &str = "../pipe-job/Cargo.toml";

fn main() {
    println!("cargo::rerun-if-changed=../pipe-job");
    let target = target();
    let folder = PathBuf::from(variable("OUT_DIR")).join("pipe-job");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["build", "--locked", "--quiet", "--profile", "job", "--manifest-path", MANIFEST]);
    // With a target of its own the flags are those of this program alone, and not of build scripts.
    cargo.args(["--target", &target]).arg("--target-dir").arg(&folder);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static");
    // They belong to the build that this is a part of: clippy, for one, would check instead of compiling.
    for name in ["RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"] {
        cargo.env_remove(name);
    }
    let built = cargo.status().is_ok_and(|status| status.success());
    let program = folder.join(&target).join("job/pipe-job");
    if !built || !program.exists() {
        println!(
            "cargo::error=cannot compile pipe-job as a static program for {target}: install the static C library \
             (libc6-dev on Debian, glibc-static on Fedora), or the target for musl: rustup target add {}",
            target.replace("-gnu", "-musl")
        );
        return;
    }
    println!("cargo::rustc-env=PIPE_JOB_PROGRAM={}", program.display());
    join_program();
}

/// Compiles the program that joins the parts of `pipe-job` in a pod. It uses no library, not even that of the language.
fn join_program() {
    let program = PathBuf::from(variable("OUT_DIR")).join("pipe-job-join");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args([
        "--edition",
        "2024",
        "--crate-type",
        "bin",
        "--crate-name",
        "pipe_job_join",
        "--target",
        &variable("TARGET"),
    ]);
    for option in ["panic=abort", "opt-level=z", "strip=symbols", "relocation-model=static"] {
        rustc.arg("-C").arg(option);
    }
    for option in ["-nostdlib", "-nostartfiles", "-static"] {
        rustc.arg("-C").arg(format!("link-arg={option}"));
    }
    let built = rustc.arg("../pipe-job/join.rs").arg("-o").arg(&program).status().is_ok_and(|status| status.success());
    if !built {
        println!("cargo::error=cannot compile src/pipe-job/join.rs");
        return;
    }
    println!("cargo::rustc-env=PIPE_JOB_JOIN={}", program.display());
}

/// The target for musl where it is installed, which needs no other library; else that of this build.
fn target() -> String {
    let own = variable("TARGET");
    let musl = own.replace("-gnu", "-musl");
    let sysroot = Command::new(variable("RUSTC")).args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let is_installed = Path::new(&sysroot).join("lib/rustlib").join(&musl).join("lib").exists();
    if is_installed { musl } else { own }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
