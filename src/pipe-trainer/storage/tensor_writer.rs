//! Writes safetensors, one tensor at a time: no second copy of a model is held. Finds tensors that are not finite.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use tch::{Device, Kind, TchError, Tensor};

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
