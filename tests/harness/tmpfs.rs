//! A small file system for one test, unmounted when it is dropped. Needs root.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;

pub struct Tmpfs(PathBuf);

impl Tmpfs {
    /// `size` as mount takes it: `64k`, `3m`.
    pub fn mount(path: PathBuf, size: &str) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        let disk = Self(path);
        disk.run(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        disk
    }

    #[allow(dead_code)] // The runner's tests alone use it.
    pub fn resize(&self, size: &str) {
        self.run(&["-o", &format!("remount,size={size}")]);
    }

    fn run(&self, args: &[&str]) {
        let status = Command::new("mount").args(args).arg(&self.0).status().unwrap();
        assert!(status.success(), "mount {args:?}");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

/// A disk with ext4 that can lose its power: what was written and not synced is gone then.
#[allow(dead_code)] // The runner's tests alone use it.
pub struct Disk {
    image: PathBuf,
    mounted: Tmpfs,
}

#[allow(dead_code)]
impl Disk {
    pub fn mount(path: PathBuf, size: u64) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        let image = path.with_extension("image");
        File::create(&image).unwrap().set_len(size).unwrap();
        assert!(Command::new("mkfs.ext4").arg("-q").arg(&image).status().unwrap().success());
        let disk = Self { image, mounted: Tmpfs(path) };
        disk.mounted.run(&["-o", "loop", disk.image.to_str().unwrap()]);
        std::fs::remove_dir(disk.mounted.0.join("lost+found")).unwrap();
        disk
    }

    /// Every write fails from now on.
    pub fn cut_power(&self) {
        unsafe extern "C" {
            fn ioctl(file: i32, request: std::ffi::c_ulong, ...) -> i32;
        }
        // As EXT4_IOC_SHUTDOWN and EXT4_GOING_FLAGS_NOLOGFLUSH are in the kernel.
        let (shutdown, without_its_journal) = (0x8004_587d, 2u32);
        let top = File::open(&self.mounted.0).unwrap();
        // SAFETY: the kernel reads a number from the pointer.
        let done = unsafe { ioctl(top.as_raw_fd(), shutdown, &raw const without_its_journal) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Mounts what is on the disk in the place of what was there before the cut.
    pub fn restart(mut self) -> Self {
        let image = self.image.with_extension("image2");
        std::fs::copy(&self.image, &image).unwrap();
        let path = self.mounted.0.clone();
        // The programs that still use the old one are nobody's concern.
        Command::new("umount").arg("-l").arg(&path).status().unwrap();
        self.mounted.run(&["-o", "loop", image.to_str().unwrap()]);
        self.image = image;
        self
    }
}
