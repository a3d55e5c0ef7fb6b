//! The activity of a thread in words, such as the row that it reads, so that an error about memory can say where it ran out. Allocates
//! nothing: the allocator itself asks for it.

use std::cell::Cell;
use std::fmt::{self, Write};

const MAX_BYTES: usize = 240;

/// A short text of its own. What does not fit is cut.
#[derive(Clone, Copy)]
pub struct Activity {
    bytes: [u8; MAX_BYTES],
    length: usize,
}

impl Activity {
    pub const NONE: Self = Self { bytes: [0; MAX_BYTES], length: 0 };

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Absent where no activity is set.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.as_bytes()).ok().filter(|text| !text.is_empty())
    }
}

impl Write for Activity {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut count = text.len().min(MAX_BYTES - self.length);
        while !text.is_char_boundary(count) {
            count -= 1;
        }
        self.bytes[self.length..self.length + count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        Ok(())
    }
}

thread_local! {
    static CURRENT: Cell<Activity> = const { Cell::new(Activity::NONE) };
}

/// Restores the previous activity, also where the work panics.
struct Restore(Activity);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Does `work`; `current` is `what` meanwhile: "row 3 of train.jsonl".
pub fn during<T>(what: fmt::Arguments<'_>, work: impl FnOnce() -> T) -> T {
    let mut activity = Activity::NONE;
    let _ = activity.write_fmt(what);
    let _restore = Restore(CURRENT.replace(activity));
    work()
}

/// The activity of this thread.
pub fn current() -> Activity {
    CURRENT.try_with(Cell::get).unwrap_or(Activity::NONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_activity_is_current_and_the_previous_one_is_restored() {
        let now = || current().text().map(str::to_owned);
        during(format_args!("row {}", 1), || {
            during(format_args!("{}", "ä".repeat(MAX_BYTES)), || {
                assert_eq!(now().unwrap(), "ä".repeat(MAX_BYTES / 2));
            });
            assert_eq!(now().as_deref(), Some("row 1"));
        });
        assert_eq!(now(), None);
    }
}
