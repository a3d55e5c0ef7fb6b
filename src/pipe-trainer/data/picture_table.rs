//! Pictures that are prepared already: `images.safetensors` beside a data file, whose rows name them by number. Mapped into
//! memory, one picture copied at a time.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};

use crate::error::TrainerError;

pub struct PictureTable {
    path: PathBuf,
    map: Mmap,
    /// Where the first picture begins.
    start: usize,
    len: usize,
    /// Values of one picture.
    values: usize,
}

impl PictureTable {
    /// The tensor `pixel_values`, whose pictures must have `shape`.
    pub fn open(path: &Path, shape: &[i64]) -> Result<Self, TrainerError> {
        let fail = |message: String| TrainerError::Data { path: path.to_owned(), line: None, message };
        let file = File::open(path).map_err(|error| fail(error.to_string()))?;
        // SAFETY: a data set that another program shortens while it is trained on ends the process, as losing it would.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| fail(error.to_string()))?;
        let parsed = SafeTensors::deserialize(&map).map_err(|error| fail(format!("not safetensors: {error}")))?;
        let view = parsed.tensor("pixel_values").map_err(|_| fail("it has no tensor pixel_values".to_owned()))?;
        let found: Vec<i64> = view.shape().iter().map(|size| *size as i64).collect();
        if view.dtype() != Dtype::F32 || found.get(1..) != Some(shape) {
            let wanted: Vec<String> = shape.iter().map(i64::to_string).collect();
            let message = format!(
                "pixel_values is {:?} {found:?}; the model wants F32 [pictures, {}]",
                view.dtype(),
                wanted.join(", ")
            );
            return Err(fail(message));
        }
        let start = view.data().as_ptr() as usize - map.as_ptr() as usize;
        let (len, values) = (view.shape()[0], view.shape()[1..].iter().product());
        Ok(Self { path: path.to_owned(), map, start, len, values })
    }

    /// Whether there is a picture of that number; or else why not.
    pub fn check(&self, number: usize) -> Result<(), String> {
        if number < self.len {
            return Ok(());
        }
        Err(format!("{} has {} pictures, counted from 0", self.path.display(), self.len))
    }

    pub fn read(&self, number: usize) -> Result<Vec<f32>, String> {
        self.check(number)?;
        let bytes = self.values * size_of::<f32>();
        let start = self.start + number * bytes;
        let value = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(self.map[start..start + bytes].chunks_exact(size_of::<f32>()).map(value).collect())
    }
}
