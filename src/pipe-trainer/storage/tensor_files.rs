//! Reads tensors by name: of a safetensors file, or of the files of a model's folder, safetensors or pickled. Mapped
//! into memory, one tensor copied at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use pipe_spec::model_folder;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use super::bounded_file::{self, LARGEST_INDEX};
use super::pickle::{self, Located};
use crate::error::TrainerError;

pub struct TensorFiles {
    /// The path that was opened, for messages.
    path: PathBuf,
    tensors: BTreeMap<String, StoredTensor>,
    maps: Vec<Mmap>,
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
        let text = bounded_file::read(index, LARGEST_INDEX).map_err(|error| fail(error.to_string()))?;
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
        let moved = others.tensors.into_iter().map(|(name, tensor)| {
            let map = first + tensor.map;
            (name, StoredTensor { map, ..tensor })
        });
        self.tensors.extend(moved);
        self
    }

    fn empty(path: &Path) -> Self {
        Self { path: path.to_owned(), tensors: BTreeMap::new(), maps: Vec::new() }
    }

    fn add(&mut self, path: &Path) -> Result<(), TrainerError> {
        let fail = |message: String| TrainerError::Model { path: path.to_owned(), message };
        let file = File::open(path).map_err(|error| fail(error.to_string()))?;
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
