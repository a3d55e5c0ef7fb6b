//! Links the trainer so that one binary runs with and without CUDA: libtorch is looked for beside the program, and symbols
//! that only `libtorch_cuda.so` has may stay open until it is loaded at run time.

use std::fs;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    watch_sources(Path::new("torch"));
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let libtorch =
        std::env::var("LIBTORCH").expect("LIBTORCH names the folder of libtorch (.cargo/config.toml sets it)");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .pic(true)
        .warnings(false)
        // In the profile `dev` too: dropout on the CPU needs the loops that only then become instructions on vectors.
        .opt_level(3)
        .includes([
            "torch".to_owned(),
            format!("{libtorch}/include"),
            format!("{libtorch}/include/torch/csrc/api/include"),
        ])
        .file("torch/shim.cpp")
        .compile("pipe_shim");
    println!("cargo:rustc-link-arg=-Wl,--unresolved-symbols=ignore-in-shared-libs");
    // Searched before LD_LIBRARY_PATH, which on many machines names libraries of another CUDA version.
    println!("cargo:rustc-link-arg=-Wl,--disable-new-dtags");
    // From target/debug, from target/debug/deps (test programs), from bin/ where pipe is installed, and from pipe_train/bin beside the
    // torch of a Python.
    for folder in ["../libtorch/lib", "../../libtorch/lib", "../lib/pipe", "../../torch/lib"] {
        println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/{folder}");
    }
}

/// Builds again when a file of C++ changes. The Rust beside them is not compiled here.
fn watch_sources(folder: &Path) {
    for path in fs::read_dir(folder).expect("the sources of the shim").map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() {
            watch_sources(&path);
        } else if path.extension().is_some_and(|ending| ["cpp", "hpp", "h"].iter().any(|one| ending == *one)) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
}
