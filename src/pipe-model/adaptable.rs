//! The layers of an architecture that can have an adapter, by their names. It must know no adapter.

/// The layers that can have an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adaptable {
    /// Their names as modules of transformers, which PEFT has: the last parts of their paths. Empty: the model cannot have any.
    pub names: &'static [&'static str],
    /// Parts of paths in files of weights, and what stands for them in the paths of modules where these differ, in the order in which
    /// they are replaced.
    pub renamed: &'static [(&'static str, &'static str)],
}

impl Adaptable {
    pub const NONE: Self = Self::named(&[]);

    /// Modules that are called what files call them.
    pub const fn named(names: &'static [&'static str]) -> Self {
        Self { names, renamed: &[] }
    }

    /// The path of the module, or of a parameter of it, that is at `path` in files.
    pub fn module(&self, path: &str) -> String {
        let mut path = format!(".{path}.");
        for (stored, module) in self.renamed {
            path = path.replace(&format!(".{stored}."), &format!(".{module}."));
        }
        path.trim_matches('.').to_owned()
    }

    /// Which of the names the layer at `path` in files has.
    pub fn position(&self, path: &str) -> Option<usize> {
        let module = self.module(path);
        self.names.iter().position(|name| *name == last_part(&module))
    }

    /// A target of an adapter, a name or the end of a path, with the names of modules in place of those of files.
    pub fn targets(&self, target: &str) -> Vec<String> {
        let ends = self.renamed.iter().filter(|(stored, _)| is_end(stored, target));
        let modules: Vec<String> = ends.map(|(_, module)| last_part(module).to_owned()).collect();
        if modules.is_empty() { vec![self.module(target)] } else { modules }
    }
}

/// Whether `end` is a path or the last parts of it.
pub fn is_end(path: &str, end: &str) -> bool {
    path.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// The name of a layer without the path to it.
pub fn last_part(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_become_those_of_modules() {
        let adapts = Adaptable {
            names: &["q_proj", "o_proj", "fc2"],
            renamed: &[
                ("encoder.layer", "layers"),
                ("attention.query", "q_proj"),
                ("attention.output.dense", "attention.o_proj"),
                ("output.dense", "mlp.fc2"),
            ],
        };
        for (path, module, position) in [
            ("vit.encoder.layer.1.attention.query", "vit.layers.1.q_proj", Some(0)),
            ("encoder.layer.0.attention.output.dense", "layers.0.attention.o_proj", Some(1)),
            ("encoder.layer.0.output.dense", "layers.0.mlp.fc2", Some(2)),
            ("classifier", "classifier", None),
            ("my_encoder.layer.0", "my_encoder.layer.0", None),
        ] {
            assert_eq!((adapts.module(path).as_str(), adapts.position(path)), (module, position));
        }
        for (target, want) in [
            ("query", &["q_proj"][..]),
            ("dense", &["o_proj", "fc2"]),
            ("output.dense", &["o_proj", "fc2"]),
            ("q_proj", &["q_proj"]),
            ("encoder.layer.1.attention.query", &["layers.1.q_proj"]),
        ] {
            assert_eq!(adapts.targets(target), want);
        }
    }
}
