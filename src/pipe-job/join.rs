//! Joins the parts of a program to one file and becomes that program: `pipe-job-join FILE PART... -- ARGS...`
//!
//! A secret of a Kubernetes cluster holds at most 1 MiB, and `pipe-job` is larger where it brings the C library of GNU. This program has no
//! library at all, so that it fits beside a part. `build.rs` of `pipe` compiles it.

#![no_std]
#![no_main]

use core::arch::{asm, global_asm};

#[cfg(target_arch = "x86_64")]
mod system {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const EXECVE: usize = 59;
    pub const EXIT: usize = 231;
    pub const OPENAT: usize = 257;
}

#[cfg(target_arch = "aarch64")]
mod system {
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const CLOSE: usize = 57;
    pub const EXECVE: usize = 221;
    pub const EXIT: usize = 94;
    pub const OPENAT: usize = 56;
}

#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "mov rdi, rsp", "and rsp, -16", "call {start}", start = sym start);

#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x0, sp", "bl {start}", start = sym start);

/// Asks the kernel; a negative answer is an error.
unsafe fn call(number: usize, one: usize, two: usize, three: usize, four: usize) -> isize {
    let mut answer = number as isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller gives what the kernel wants, which changes nothing but these registers.
    unsafe {
        asm!("syscall", inlateout("rax") answer, in("rdi") one, in("rsi") two, in("rdx") three, in("r10") four,
             lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        let mut first = one as isize;
        asm!("svc 0", in("x8") answer, inlateout("x0") first, in("x1") two, in("x2") three, in("x3") four, options(nostack));
        answer = first;
    }
    answer
}

fn exit(code: usize) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { call(system::EXIT, code, 0, 0, 0) };
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(101)
}

const FROM_WORKING_FOLDER: usize = -100isize as usize;
const READ_ONLY: usize = 0;
const WRITE_NEW: usize = 0o1 | 0o100 | 0o1000;
const PROGRAM_MODE: usize = 0o755;
const BUFFER: usize = 1 << 16;

static mut PIECE: [u8; BUFFER] = [0; BUFFER];

/// `stack` is what the kernel leaves there: the number of the words, the words, nothing, the variables, nothing.
unsafe extern "C" fn start(stack: *const usize) -> ! {
    // SAFETY: the kernel has laid the stack out like this, and the words end with a zero.
    unsafe {
        let count = *stack;
        let words = stack.add(1);
        let variables = words.add(count + 1);
        if count < 4 {
            exit(2);
        }
        let target = call(system::OPENAT, FROM_WORKING_FOLDER, *words.add(1), WRITE_NEW, PROGRAM_MODE);
        if target < 0 {
            exit(3);
        }
        let mut at = 2;
        while at < count && !is_end(*words.add(at) as *const u8) {
            copy(*words.add(at), target as usize);
            at += 1;
        }
        call(system::CLOSE, target as usize, 0, 0, 0);
        call(system::EXECVE, *words.add(1), words.add(at) as usize, variables as usize, 0);
    }
    exit(4)
}

/// Whether a word is `--`.
unsafe fn is_end(word: *const u8) -> bool {
    // SAFETY: a word ends with a zero, and no byte behind it is read.
    unsafe { *word == b'-' && *word.add(1) == b'-' && *word.add(2) == 0 }
}

unsafe fn copy(path: usize, target: usize) {
    let piece = &raw mut PIECE as usize;
    // SAFETY: the piece is as long as what is read into it, and nothing else uses it.
    unsafe {
        let part = call(system::OPENAT, FROM_WORKING_FOLDER, path, READ_ONLY, 0);
        if part < 0 {
            exit(5);
        }
        loop {
            let read = call(system::READ, part as usize, piece, BUFFER, 0);
            if read == 0 {
                break;
            }
            let mut written = 0;
            while written < read {
                let now = call(system::WRITE, target, piece + written as usize, (read - written) as usize, 0);
                if read < 0 || now <= 0 {
                    exit(6);
                }
                written += now;
            }
            if read < 0 {
                exit(6);
            }
        }
        call(system::CLOSE, part as usize, 0, 0, 0);
    }
}
