//! Reads safetensors: one file, or the files of a model's folder. Mapped into memory, one tensor copied at a time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use crate::error::TrainerError;

pub struct TensorFiles {
    /// What was opened, for messages.
    path: PathBuf,
    tensors: BTreeMap<String, Entry>,
    maps: Vec<Mmap>,
}

struct Entry {
    map: usize,
    kind: Kind,
    shape: Vec<i64>,
    start: usize,
    end: usize,
}

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl TensorFiles {
    /// `model.safetensors` of a folder, or the files that its index names.
    pub fn open_folder(folder: &Path) -> Result<Self, TrainerError> {
        let single = folder.join("model.safetensors");
        let index = folder.join("model.safetensors.index.json");
        if single.exists() || !index.exists() {
            return Self::open_file(&single);
        }
        let fail = |message: String| TrainerError::Model { path: index.clone(), message };
        let text = fs::read(&index).map_err(|error| fail(error.to_string()))?;
        let parsed: Index = serde_json::from_slice(&text).map_err(|error| fail(error.to_string()))?;
        let mut names: Vec<&String> = parsed.weight_map.values().collect();
        names.sort_unstable();
        names.dedup();
        let mut files = Self::empty(folder);
        for name in names {
            files.add(&folder.join(name))?;
        }
        Ok(files)
    }

    pub fn open_file(path: &Path) -> Result<Self, TrainerError> {
        let mut files = Self::empty(path);
        files.add(path)?;
        Ok(files)
    }

    fn empty(path: &Path) -> Self {
        Self { path: path.to_owned(), tensors: BTreeMap::new(), maps: Vec::new() }
    }

    fn add(&mut self, path: &Path) -> Result<(), TrainerError> {
        let fail = |message: String| TrainerError::Model { path: path.to_owned(), message };
        let file = File::open(path).map_err(|error| fail(error.to_string()))?;
        // SAFETY: weights that somebody else shortens while they are read end the process, as losing them would.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| fail(error.to_string()))?;
        let parsed = SafeTensors::deserialize(&map).map_err(|error| fail(format!("not safetensors: {error}")))?;
        for (name, view) in parsed.iter() {
            let start = view.data().as_ptr() as usize - map.as_ptr() as usize;
            let kind = kind(view.dtype()).ok_or_else(|| fail(format!("tensor {name} is {:?}", view.dtype())))?;
            let shape = view.shape().iter().map(|size| *size as i64).collect();
            let entry = Entry { map: self.maps.len(), kind, shape, start, end: start + view.data().len() };
            self.tensors.insert(name.to_owned(), entry);
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

    /// A tensor as it stands in the file.
    pub fn read(&self, name: &str) -> Result<Tensor, TrainerError> {
        let entry = self.tensors.get(name).ok_or_else(|| self.fail(name, "missing".to_owned()))?;
        let bytes = &self.maps[entry.map][entry.start..entry.end];
        Ok(Tensor::f_from_data_size(bytes, &entry.shape, entry.kind)?)
    }

    /// A tensor that must have `shape`, as `kind` on `device`.
    pub fn read_shaped(&self, name: &str, shape: &[i64], kind: Kind, device: Device) -> Result<Tensor, TrainerError> {
        let tensor = self.read(name)?;
        if tensor.size() != shape {
            return Err(self.fail(name, format!("its shape is {:?}, the model has {shape:?}", tensor.size())));
        }
        // Converted before it is moved, so that the device never holds it twice.
        Ok(tensor.f_to_kind(kind)?.f_to_device(device)?)
    }

    fn fail(&self, name: &str, message: String) -> TrainerError {
        TrainerError::Tensor { path: self.path.clone(), name: name.to_owned(), message }
    }
}

fn kind(dtype: Dtype) -> Option<Kind> {
    match dtype {
        Dtype::F32 => Some(Kind::Float),
        Dtype::F16 => Some(Kind::Half),
        Dtype::BF16 => Some(Kind::BFloat16),
        Dtype::F64 => Some(Kind::Double),
        Dtype::I64 => Some(Kind::Int64),
        Dtype::I32 => Some(Kind::Int),
        Dtype::BOOL => Some(Kind::Bool),
        _ => None,
    }
}
