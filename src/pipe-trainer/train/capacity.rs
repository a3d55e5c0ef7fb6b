//! How much memory a training may hold.

use pipe_spec::Device;

/// How much of its memory a training may hold. All of a card's can be used; on the host the page cache
/// needs some, and programs slow down long before they are killed.
pub fn usable(device: Device, bytes: u64) -> u64 {
    match device {
        Device::Cuda => bytes,
        Device::Cpu => bytes / 10 * 9,
    }
}
