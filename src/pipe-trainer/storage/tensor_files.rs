//! Reads tensors by name: of a safetensors file, or of the files of a model's folder, safetensors or pickled. Mapped
//! into memory, one tensor copied at a time.
//!
//! Writes safetensors, one tensor at a time: no second copy of a model is held. Finds tensors that are not finite.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use pipe_spec::model_folder;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use tch::{Device, Kind, TchError, Tensor};

use super::LARGEST_INDEX;
use super::pickle::{self, Located};
use crate::error::TrainerError;
use crate::storage;

pub struct TensorFiles {
    /// The path that was opened, for messages.
    path: PathBuf,
    tensors: BTreeMap<String, StoredTensor>,
    maps: Vec<Mmap>,
    /// The path of each of them.
    parts: Vec<PathBuf>,
}

struct StoredTensor {
    map: usize,
    kind: Kind,
    shape: Vec<i64>,
    /// In elements; nothing where the last dimension lies together, and all others around it.
    strides: Option<Vec<i64>>,
    start: usize,
    end: usize,
}

/// `model.safetensors.index.json` and `pytorch_model.bin.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl TensorFiles {
    /// The weights of a folder: the first format that is there, in one file or in those that its index names.
    pub fn open_folder(folder: &Path) -> Result<Self, TrainerError> {
        for format in model_folder::WEIGHTS {
            let (single, index) = (folder.join(format.single), folder.join(format.index));
            if single.exists() {
                return Self::open_file(&single);
            }
            if index.exists() {
                return Self::open_parts(folder, &index);
            }
        }
        let names = model_folder::WEIGHTS.map(|format| format.single).join(" nor ");
        Err(TrainerError::Model { path: folder.to_owned(), message: format!("it has neither {names}") })
    }

    fn open_parts(folder: &Path, index: &Path) -> Result<Self, TrainerError> {
        let fail = |message: String| TrainerError::Model { path: index.to_owned(), message };
        let text = storage::read(index, LARGEST_INDEX).map_err(|error| fail(error.to_string()))?;
        let parsed: Index = serde_json::from_slice(&text).map_err(|error| fail(error.to_string()))?;
        let mut names: Vec<&String> = parsed.weight_map.values().collect();
        names.sort_unstable();
        names.dedup();
        let mut files = Self::empty(folder);
        for name in names {
            if Path::new(name).file_name() != Some(name.as_ref()) {
                return Err(fail(format!("it names {name:?}; allowed: files beside it")));
            }
            files.add(&folder.join(name))?;
        }
        Ok(files)
    }

    /// Pickled where the name ends in .bin, else safetensors.
    pub fn open_file(path: &Path) -> Result<Self, TrainerError> {
        let mut files = Self::empty(path);
        files.add(path)?;
        Ok(files)
    }

    /// The same without some tensors.
    pub fn without(mut self, names: &[&str]) -> Self {
        self.tensors.retain(|name, _| !names.contains(&name.as_str()));
        self
    }

    /// The tensors of both; those of `others` where both have one.
    pub fn joined(mut self, others: Self) -> Self {
        let first = self.maps.len();
        self.maps.extend(others.maps);
        self.parts.extend(others.parts);
        let moved = others.tensors.into_iter().map(|(name, tensor)| {
            let map = first + tensor.map;
            (name, StoredTensor { map, ..tensor })
        });
        self.tensors.extend(moved);
        self
    }

    fn empty(path: &Path) -> Self {
        Self { path: path.to_owned(), tensors: BTreeMap::new(), maps: Vec::new(), parts: Vec::new() }
    }

    fn add(&mut self, path: &Path) -> Result<(), TrainerError> {
        let fail = |message: String| TrainerError::Model { path: path.to_owned(), message };
        let file = storage::open(path).map_err(|error| fail(error.to_string()))?;
        // SAFETY: weights that another program shortens while they are read end the process, as losing them would.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| fail(error.to_string()))?;
        let number = self.maps.len();
        if path.extension().is_some_and(|ending| ending == "bin") {
            let located = pickle::locate(&map).map_err(fail)?;
            let stored = located.into_iter().map(|(name, tensor)| (name, StoredTensor::pickled(number, tensor)));
            self.tensors.extend(stored);
        } else {
            let parsed = SafeTensors::deserialize(&map).map_err(|error| fail(format!("not safetensors: {error}")))?;
            for (name, view) in parsed.iter() {
                let start = view.data().as_ptr() as usize - map.as_ptr() as usize;
                let kind = kind(view.dtype()).ok_or_else(|| fail(format!("tensor {name} is {:?}", view.dtype())))?;
                let shape = view.shape().iter().map(|size| *size as i64).collect();
                let stored =
                    StoredTensor { map: number, kind, shape, strides: None, start, end: start + view.data().len() };
                self.tensors.insert(name.to_owned(), stored);
            }
        }
        self.maps.push(map);
        self.parts.push(path.to_owned());
        Ok(())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The shape of a tensor that is there.
    pub fn shape(&self, name: &str) -> Option<&[i64]> {
        self.tensors.get(name).map(|stored| stored.shape.as_slice())
    }

    /// A tensor as it stands in the file.
    pub fn read(&self, name: &str) -> Result<Tensor, TrainerError> {
        let stored = self.stored(name)?;
        let map = &self.maps[stored.map];
        let bytes = &map[stored.start..stored.end];
        let Some(strides) = &stored.strides else {
            return Ok(Tensor::f_from_data_size(bytes, &stored.shape, stored.kind)?);
        };
        // A pickle can say that one element is a whole tensor, however large.
        let whole = stored.shape.iter().try_fold(1i64, |whole, size| whole.checked_mul(*size));
        if whole.is_none_or(|whole| whole as u64 > map.len() as u64) {
            return Err(self.fail(name, format!("its shape {:?} is larger than its file", stored.shape)));
        }
        let span = (bytes.len() / stored.kind.elt_size_in_bytes()) as i64;
        let span = Tensor::f_from_data_size(bytes, &[span], stored.kind)?;
        Ok(span.f_as_strided(&stored.shape, strides, None)?.f_contiguous()?)
    }

    /// An error that names the first tensor that is not finite, and what came of it.
    pub fn check_finite(&self, then: &str) -> Result<(), TrainerError> {
        for name in self.names() {
            if first_not_finite(&[(name.to_owned(), &self.read(name)?)])?.is_some() {
                let map = self.stored(name)?.map;
                let path = self.parts.get(map).unwrap_or(&self.path).clone();
                let message =
                    format!("it has numbers that are not finite (NaN or infinite), {then}; the file is damaged");
                return Err(TrainerError::Tensor { path, name: name.to_owned(), message });
            }
        }
        Ok(())
    }

    /// All of them where they lie, without a copy. They are read while `self` lives.
    pub fn views(&self) -> Result<Vec<(String, Tensor)>, TrainerError> {
        let view = |(name, stored): (&String, &StoredTensor)| {
            let address = self.maps[stored.map][stored.start..stored.end].as_ptr();
            let strides = contiguous_strides(&stored.shape);
            let aligned = address.align_offset(stored.kind.elt_size_in_bytes()) == 0 && stored.strides.is_none();
            if !aligned {
                return Ok((name.clone(), self.read(name)?));
            }
            // SAFETY: the mapping has all bytes of the tensor, and lives as long as `self`. Nothing writes to the tensor.
            let tensor = unsafe { Tensor::f_from_blob(address, &stored.shape, &strides, stored.kind, Device::Cpu)? };
            Ok((name.clone(), tensor))
        };
        self.tensors.iter().map(view).collect()
    }

    /// Whether it is there in this shape. Reads nothing of it.
    pub fn check_shape(&self, name: &str, shape: &[i64]) -> Result<(), TrainerError> {
        let found = &self.stored(name)?.shape;
        match found == shape {
            true => Ok(()),
            false => Err(self.fail(name, format!("its shape is {found:?}, the model has {shape:?}"))),
        }
    }

    /// A tensor that must have `shape`, as `kind` on `device`.
    pub fn read_shaped(&self, name: &str, shape: &[i64], kind: Kind, device: Device) -> Result<Tensor, TrainerError> {
        self.check_shape(name, shape)?;
        // Converted before it is moved, so that the device never holds it twice.
        Ok(self.read(name)?.f_to_kind(kind)?.f_to_device(device)?)
    }

    /// The same in the kind that it has in the file.
    pub fn read_as_stored(&self, name: &str, shape: &[i64], device: Device) -> Result<Tensor, TrainerError> {
        self.check_shape(name, shape)?;
        Ok(self.read(name)?.f_to_device(device)?)
    }

    fn stored(&self, name: &str) -> Result<&StoredTensor, TrainerError> {
        self.tensors.get(name).ok_or_else(|| self.fail(name, "missing".to_owned()))
    }

    fn fail(&self, name: &str, message: String) -> TrainerError {
        TrainerError::Tensor { path: self.path.clone(), name: name.to_owned(), message }
    }
}

fn contiguous_strides(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at];
    }
    strides
}

impl StoredTensor {
    fn pickled(map: usize, tensor: Located) -> Self {
        let Located { kind, shape, strides, start, end } = tensor;
        let strides = Some(strides).filter(|strides| !is_contiguous(&shape, strides));
        Self { map, kind, shape, strides, start, end }
    }
}

/// Whether elements lie one behind the other in the order of their indices. The stride of a single element says nothing.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = Some(1i64);
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(size, stride)| {
            let fits = *size == 1 || Some(*stride) == expected;
            expected = expected.and_then(|expected| expected.checked_mul(*size));
            fits
        })
}

fn kind(dtype: Dtype) -> Option<Kind> {
    match dtype {
        Dtype::F32 => Some(Kind::Float),
        Dtype::F16 => Some(Kind::Half),
        Dtype::BF16 => Some(Kind::BFloat16),
        Dtype::F64 => Some(Kind::Double),
        Dtype::I64 => Some(Kind::Int64),
        Dtype::I32 => Some(Kind::Int),
        Dtype::I16 => Some(Kind::Int16),
        Dtype::I8 => Some(Kind::Int8),
        Dtype::U8 => Some(Kind::Uint8),
        Dtype::BOOL => Some(Kind::Bool),
        _ => None,
    }
}

/// Size and checksum of a file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub bytes: u64,
    pub blake3: String,
}

impl Written {
    pub fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, blake3: blake3::hash(bytes).to_hex().to_string() }
    }
}

/// Writes `tensors` in the given order and waits for the disk. An error of torch comes back inside the io error.
pub fn write(path: &Path, tensors: &[(String, &Tensor)]) -> io::Result<Written> {
    let mut out = HashingFile { file: File::create(path)?, hasher: blake3::Hasher::new(), bytes: 0 };
    let header = header(tensors)?;
    out.write(&(header.len() as u64).to_le_bytes())?;
    out.write(&header)?;
    for (_, tensor) in tensors {
        let host = to_host(tensor).map_err(io::Error::other)?;
        // SAFETY: a contiguous tensor on the CPU is `numel` elements in a row, and `host` outlives the slice.
        let bytes = unsafe { std::slice::from_raw_parts(host.data_ptr().cast::<u8>(), data_len(&host)) };
        out.write(bytes)?;
    }
    out.finish()
}

/// Brings all of them to the host one by one, as `write` does, and writes nothing.
pub fn read_all(tensors: &[(String, &Tensor)]) -> Result<(), TchError> {
    tensors.iter().try_for_each(|(_, tensor)| to_host(tensor).map(drop))
}

fn to_host(tensor: &Tensor) -> Result<Tensor, TchError> {
    tensor.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()
}

fn header(tensors: &[(String, &Tensor)]) -> io::Result<Vec<u8>> {
    let mut offset = 0;
    let mut infos = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let end = offset + data_len(tensor);
        let shape = tensor.size().into_iter().map(|size| size as usize).collect();
        infos.push((name.clone(), TensorInfo { dtype: dtype(tensor.kind())?, shape, data_offsets: (offset, end) }));
        offset = end;
    }
    // Hugging Face refuses files that do not say which framework they are for.
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), infos).map_err(io::Error::other)?;
    let mut json = serde_json::to_vec(&metadata)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    Ok(json)
}

fn data_len(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}

fn dtype(kind: Kind) -> io::Result<Dtype> {
    match kind {
        Kind::Float => Ok(Dtype::F32),
        Kind::Half => Ok(Dtype::F16),
        Kind::BFloat16 => Ok(Dtype::BF16),
        Kind::Int64 => Ok(Dtype::I64),
        Kind::Uint8 => Ok(Dtype::U8),
        other => Err(io::Error::other(format!("tensors of kind {other:?} are not written"))),
    }
}

struct HashingFile {
    file: File,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl HashingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn finish(self) -> io::Result<Written> {
        self.file.sync_all()?;
        Ok(Written { bytes: self.bytes, blake3: self.hasher.finalize().to_hex().to_string() })
    }
}

/// The name of the first tensor with a value that is not finite. Each tensor is read once where it lies, without a copy; the
/// device is waited for once, at the end.
pub fn first_not_finite<'a>(tensors: &'a [(String, &Tensor)]) -> Result<Option<&'a str>, TchError> {
    let mut names = Vec::new();
    let mut extremes = Vec::new();
    for (name, tensor) in tensors {
        if !matches!(tensor.kind(), Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16) || tensor.numel() == 0 {
            continue;
        }
        // Both are not a number where any value is none.
        let (least, most) = tensor.f_detach()?.f_aminmax(None, false)?;
        names.push(name.as_str());
        extremes.push(least.f_to_kind(Kind::Float)?);
        extremes.push(most.f_to_kind(Kind::Float)?);
    }
    if extremes.is_empty() {
        return Ok(None);
    }
    let extremes: Vec<f32> = Vec::try_from(Tensor::f_stack(&extremes, 0)?.f_to_device(Device::Cpu)?)?;
    let bad = extremes.chunks_exact(2).position(|pair| !pair.iter().all(|value| value.is_finite()));
    Ok(bad.map(|index| names[index]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bad_tensor_is_named() {
        let good = Tensor::from_slice(&[1.0f32, -f32::MAX, f32::MAX]);
        let count = Tensor::from_slice(&[i64::MAX]);
        let empty = Tensor::zeros([0], (Kind::Float, Device::Cpu));
        let named = |tensors: &[&Tensor]| -> Vec<(String, Tensor)> {
            tensors.iter().enumerate().map(|(index, tensor)| (format!("t{index}"), tensor.shallow_clone())).collect()
        };
        let first = |tensors: &[&Tensor]| {
            let all = named(tensors);
            let all: Vec<(String, &Tensor)> = all.iter().map(|(name, tensor)| (name.clone(), tensor)).collect();
            first_not_finite(&all).unwrap().map(str::to_owned)
        };
        assert_eq!(first(&[]), None);
        assert_eq!(first(&[&good, &count, &empty]), None);
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            // Far behind what is read at once, and in every kind that is saved.
            let mut values = vec![0.5f32; 100_003];
            values[77_777] = value;
            let bad = Tensor::from_slice(&values);
            for kind in [Kind::Float, Kind::Half, Kind::BFloat16] {
                let bad = bad.to_kind(kind);
                assert_eq!(first(&[&good, &bad, &bad]).as_deref(), Some("t1"), "{value} {kind:?}");
            }
        }
    }
}
