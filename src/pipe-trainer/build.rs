//! Links the trainer so that one binary runs with and without CUDA: libtorch is looked for beside the program, and symbols
//! that only `libtorch_cuda.so` has may stay open until it is loaded at run time.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg=-Wl,--unresolved-symbols=ignore-in-shared-libs");
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../libtorch/lib");
    // Test binaries lie one folder deeper, in target/release/deps.
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../../libtorch/lib");
}
