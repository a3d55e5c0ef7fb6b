//! The data of the pipelines that come with pipe, which is generated and not shipped.

/// The folders that these pipelines name, and the commands that fill them.
const COMMANDS: [(&str, &str); 6] = [
    ("data/car-clip", "pipe-trainer data pictures --rows 20000 --seed 1 --size 224 --out data/car-clip"),
    ("data/demo", "pipe-trainer data recipes --rows 2000 --seed 7 --out data/demo"),
    ("data/recipes", "pipe-trainer data recipes --rows 20000 --seed 1 --out data/recipes"),
    ("data/series", "pipe-trainer data series --rows 200000 --features 32 --seed 1 --out data/series"),
    ("data/stories", "pipe-trainer data stories --rows 20000 --seed 1 --out data/stories"),
    ("data/text-hpo", "pipe-trainer data texts --rows 20000 --seed 1 --out data/text-hpo"),
];

/// The command that makes the file `path` of such a pipeline.
pub fn command(path: &str) -> Option<&'static str> {
    let (folder, name) = path.rsplit_once('/')?;
    let is_generated = ["train", "eval"].iter().any(|part| name.split('.').next() == Some(part));
    COMMANDS.iter().find(|(known, _)| *known == folder && is_generated).map(|(_, command)| *command)
}

#[cfg(test)]
mod tests {
    use pipe_spec::Variables;
    use pipe_spec::pipeline::{Graph, Pipeline};
    use pipe_spec::study::Study;

    use super::*;

    #[test]
    fn every_pipeline_that_comes_with_pipe_has_a_command() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pipelines");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        for file in files.filter(|file| file.extension().is_some_and(|ending| ending == "yaml")) {
            let text = std::fs::read_to_string(&file).unwrap();
            let variables = Variables::new(None, std::iter::empty());
            // The data of a step comes from other steps, that of a study is its pipeline's.
            if Graph::parse(&text, &[], &variables).unwrap().is_some() || Study::is_one(&text) {
                continue;
            }
            let pipeline = Pipeline::parse(&text, &[], &variables).unwrap();
            let Some(data) = pipeline.training().map(|training| &training.data) else { continue };
            for path in data.train.0.iter().chain(data.eval.iter().flat_map(|paths| &paths.0)) {
                assert!(command(path).is_some(), "{}: {path}", file.display());
            }
        }
    }

    #[test]
    fn other_data_has_none() {
        for path in
            ["train.jsonl", "data/train.jsonl", "data/demo/mine.jsonl", "/data/demo/train.jsonl", "mine/data/demo"]
        {
            assert_eq!(command(path), None, "{path}");
        }
    }
}
