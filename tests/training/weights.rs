//! Models as the hub has them: weights that torch pickled, and tokenizers without tokenizer.json.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::golden::{compare, fixture};
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, run_parity};

pub fn tests(suite: &mut Suite) {
    suite.any_engine("weights::a_pickled_model_trains_like_safetensors", same_curve);
    suite.test("weights::a_pickled_model_in_several_files", Needs::Nothing, several_files);
    for (name, rename) in RENAMED {
        let test = move || drop(compare(name, pickled(name, *rename).path()));
        suite.test(&format!("weights::names_of_the_hub::{name}"), Needs::Nothing, test);
    }
    suite.test("weights::one_that_is_not_finite_is_named", Needs::Nothing, not_finite);
    suite.test("weights::a_pickle_that_runs_something_is_refused", Needs::Nothing, refused);
}

/// A loss that is NaN from the first step on is no matter of the learning rate where the weights were it when they were read.
fn not_finite() {
    let folder = folder("model");
    for file in ["config.json", "tokenizer.json"] {
        let path = fixture("deberta-v3").join(file);
        folder.write(&format!("model/{file}"), std::fs::read(path).unwrap());
    }
    let mut bytes = std::fs::read(fixture("deberta-v3").join("model.safetensors")).unwrap();
    let name = "deberta.encoder.layer.0.output.dense.weight";
    let at = {
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let data = tensors.tensor(name).unwrap().data().as_ptr() as usize;
        data - bytes.as_ptr() as usize
    };
    bytes[at + 8..at + 12].copy_from_slice(&f32::NAN.to_le_bytes());
    folder.write("model/model.safetensors", bytes);
    let said = folder.pipe(&["run", "hub.yaml", "--engine", "process"]).exits(3).stderr;
    let want = format!(
        "model/model.safetensors: tensor {name}: it has numbers that are not finite (NaN or infinite), so that the loss is NaN"
    );
    assert!(said.contains(&want) && !said.contains("train.optimizer.lr"), "{said}");
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(fixture("deberta-bin").join(name)).unwrap()
}

/// A folder that trains a few steps from `model`.
fn folder(model: &str) -> Folder {
    let folder = Folder::new();
    let pipeline = format!(
        "version: 1\nname: hub\nmodel: {{arch: deberta-v3, from: {model}}}\n\
         data: {{train: train.jsonl, max_length: 40}}\n\
         train: {{steps: 6, batch: 4, effective_batch: 8, optimizer: {{lr: 2.0e-3}}}}\ncontainer: {{gpus: 0, cpus: 1}}\n"
    );
    folder.write("hub.yaml", pipeline).write("train.jsonl", read("train.jsonl"));
    folder
}

/// The result of a run: its curve and its weights.
fn trained(folder: &Folder, engine: &str) -> (Vec<(u64, u64, f64)>, Vec<u8>) {
    folder.pipe(&["run", "hub.yaml", "--engine", engine]).exits(0);
    let run = folder.run_folder();
    assert!(run.join("model/tokenizer.json").is_file());
    (curve(&run), std::fs::read(run.join("model/model.safetensors")).unwrap())
}

/// config.json, pytorch_model.bin and spm.model, found in a hub cache that holds links.
fn same_curve(engine: &str) {
    let hub = folder("some-org/tiny-deberta");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let inside = |name: &str| format!("hub/models--some-org--tiny-deberta/{name}");
    hub.write(&inside("refs/main"), commit);
    for (number, name) in ["config.json", "pytorch_model.bin", "spm.model"].into_iter().enumerate() {
        hub.write(&inside(&format!("blobs/{number:040}")), read(name));
        let link = hub.path().join(inside(&format!("snapshots/{commit}/{name}")));
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(Path::new("../../blobs").join(format!("{number:040}")), link).unwrap();
    }
    let cache = hub.path().join("hub").display().to_string();
    let hub = hub.env("HF_HUB_CACHE", cache);
    let got = trained(&hub, engine);
    let twin = folder(fixture("deberta-bin/twin").to_str().unwrap());
    let want = trained(&twin, "process");
    assert_eq!(want.0.len(), 6);
    assert_eq!(got.0, want.0);
    assert!(got.1 == want.1, "other weights");

    let lock: Value = serde_json::from_slice(&std::fs::read(hub.run_folder().join("lock.json")).unwrap()).unwrap();
    assert!(lock["tokenizer"]["name"].as_str().unwrap().ends_with("/spm.model"), "{lock}");
    let names: Vec<&str> =
        lock["model"].as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap()).collect();
    assert!(names.iter().any(|name| name.ends_with("/pytorch_model.bin")), "{names:?}");
    // The tokens of the exported tokenizer.json are those of spm.model.
    let exported = folder(hub.run_folder().join("model").to_str().unwrap());
    let again = folder(hub.run_folder().join("model").to_str().unwrap());
    let set = format!("data.tokenizer={}", fixture("deberta-bin/spm.model").display());
    exported.pipe(&["run", "hub.yaml", "--engine", "process"]).exits(0);
    again.pipe(&["run", "hub.yaml", "--engine", engine, "--set", &set]).exits(0);
    assert_eq!(curve(&exported.run_folder()), curve(&again.run_folder()));
}

/// The tensors of a safetensors file in the format of torch before 1.6: name, shape, kind, bytes.
type Tensors = Vec<(String, Vec<usize>, Dtype, Vec<u8>)>;

fn tensors(name: &str) -> Tensors {
    let bytes = std::fs::read(fixture(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let owned = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        (name.to_owned(), view.shape().to_vec(), view.dtype(), view.data().to_vec())
    };
    file.iter().map(owned).collect()
}

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

fn numbers(numbers: &[usize]) -> Vec<u8> {
    let each = numbers.iter().flat_map(|number| [b"J", &(*number as u32).to_le_bytes()[..]].concat());
    b"(".iter().copied().chain(each).chain(*b"t").collect()
}

/// What torch 1.5 would have saved.
fn torch_file(tensors: &Tensors) -> Vec<u8> {
    let pickle = |content: Vec<u8>| [b"\x80\x02", &content[..], b"."].concat();
    let mut object = b"ccollections\nOrderedDict\n)R(".to_vec();
    let mut keys = b"](".to_vec();
    let mut storages = Vec::new();
    for (key, (name, shape, dtype, bytes)) in tensors.iter().enumerate() {
        let (class, size) = match dtype {
            Dtype::F32 => ("FloatStorage", 4),
            Dtype::I64 => ("LongStorage", 8),
            other => panic!("{name} is {other:?}"),
        };
        let key = text(&key.to_string());
        let mut strides = vec![1; shape.len()];
        (1..shape.len()).rev().for_each(|place| strides[place - 1] = strides[place] * shape[place]);
        let count = [b"J", &((bytes.len() / size) as u32).to_le_bytes()[..]].concat();
        let class = format!("ctorch\n{class}\n").into_bytes();
        let storage = [b"(", &text("storage")[..], &class, &key, &text("cpu"), &count, b"NtQ"].concat();
        object.extend([&text(name)[..], b"ctorch._utils\n_rebuild_tensor_v2\n(", &storage, b"K\0"].concat());
        object.extend([&numbers(shape)[..], &numbers(&strides), b"\x89ccollections\nOrderedDict\n)RtR"].concat());
        keys.extend(key);
        storages.extend((bytes.len() as u64 / size as u64).to_le_bytes());
        storages.extend(bytes);
    }
    let magic = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19".to_vec();
    let machine = [b"}", &text("little_endian")[..], b"\x88s"].concat();
    let keys = if tensors.is_empty() { b"]".to_vec() } else { [&keys[..], b"e"].concat() };
    let parts = [magic, b"M\xe9\x03".to_vec(), machine, [&object[..], b"u"].concat(), keys].map(pickle);
    [parts.concat(), storages].concat()
}

/// What a name of a fixture is on the hub, and the tensors there that no model here has.
type Rename = (fn(&str) -> String, &'static [&'static str]);

const RENAMED: &[(&str, Rename)] = &[
    ("bert", (old_norms, &["cls.predictions.bias", "cls.seq_relationship.weight", "bert.embeddings.position_ids"])),
    ("bert-encoder", (|name| old_norms(&format!("bert.{name}")), &["cls.predictions.transform.LayerNorm.gamma"])),
    (
        "roberta",
        (str::to_owned, &["lm_head.dense.weight", "roberta.pooler.dense.bias", "roberta.embeddings.position_ids"]),
    ),
    ("xlm-roberta", (str::to_owned, &["lm_head.decoder.weight", "roberta.embeddings.position_ids"])),
    ("deberta-v3", (str::to_owned, &["mask_predictions.classifier.weight", "lm_predictions.lm_head.bias"])),
    ("clip", (str::to_owned, &["text_model.embeddings.position_ids", "vision_model.embeddings.position_ids"])),
    ("t5-gated", (str::to_owned, &["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"])),
    ("t5-tied-relu", (str::to_owned, &["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"])),
];

/// As the first files of BERT have it.
fn old_norms(name: &str) -> String {
    name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
}

/// The fixture `name` with its weights in a pytorch_model.bin.
fn pickled(name: &str, (rename, more): Rename) -> Folder {
    let folder = Folder::new();
    let mut tensors = tensors(name);
    tensors.iter_mut().for_each(|tensor| tensor.0 = rename(&tensor.0));
    tensors.extend(more.iter().map(|name| ((*name).to_owned(), vec![1, 3], Dtype::I64, vec![7; 24])));
    folder.write("config.json", std::fs::read(fixture(name).join("config.json")).unwrap());
    folder.write("pytorch_model.bin", torch_file(&tensors));
    folder
}

fn several_files() {
    let name = "t5-gated";
    let folder = Folder::new();
    folder.write("config.json", std::fs::read(fixture(name).join("config.json")).unwrap());
    let (one, other): (Tensors, Tensors) =
        tensors(name).into_iter().partition(|tensor| tensor.0.starts_with("encoder"));
    assert!(!one.is_empty() && !other.is_empty());
    let shards = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"];
    let map: serde_json::Map<String, Value> = [&one, &other]
        .into_iter()
        .zip(shards)
        .flat_map(|(tensors, shard)| tensors.iter().map(move |tensor| (tensor.0.clone(), shard.into())))
        .collect();
    for (tensors, shard) in [one, other].iter().zip(shards) {
        folder.write(shard, torch_file(tensors));
    }
    folder.write("pytorch_model.bin.index.json", serde_json::json!({ "weight_map": map }).to_string());
    drop(compare(name, folder.path()));
}

fn refused() {
    let folder = Folder::new();
    folder.write("config.json", read("config.json"));
    folder.write("pytorch_model.bin", std::fs::read(fixture("pickle/command.bin")).unwrap());
    let model = folder.path().display().to_string();
    let batch: PathBuf = fixture("deberta-v3").join("batch.safetensors");
    let out = folder.path().join("out.safetensors").display().to_string();
    let answer = run_parity(&model, batch.to_str().unwrap(), &out);
    answer.exits(3).says("pytorch_model.bin: refused: posix.system");
}
