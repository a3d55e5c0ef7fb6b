//! The environment variables of the hub's own tools: cache, endpoint and token.

use std::path::PathBuf;

use pipe_spec::Variables;

use crate::system::files::absolute;

const ENDPOINT: &str = "https://huggingface.co";

pub struct Settings {
    /// A folder for each repository.
    pub cache: PathBuf,
    /// Without a slash at its end.
    pub endpoint: String,
    pub token: Option<Token>,
    /// Which variable forbids the network.
    pub offline: Option<&'static str>,
}

/// A secret. It is sent to the hub and printed nowhere.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl Settings {
    pub fn read(known: &Variables) -> Self {
        let set = |name: &str| known.get(name).map(str::trim).filter(|value| !value.is_empty());
        let user = set("HOME").map(PathBuf::from).unwrap_or_default();
        let path = |name: &str| {
            let text = set(name)?;
            Some(text.strip_prefix("~/").map_or_else(|| PathBuf::from(text), |rest| user.join(rest)))
        };
        let home = path("HF_HOME")
            .or_else(|| Some(path("XDG_CACHE_HOME")?.join("huggingface")))
            .unwrap_or_else(|| user.join(".cache/huggingface"));
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE")).unwrap_or_else(|| home.join("hub"));
        let is_on = |name: &&str| set(name).is_some_and(is_true);
        let token = || {
            let file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
            let stored = || std::fs::read_to_string(file).ok().filter(|_| !is_on(&"HF_HUB_DISABLE_IMPLICIT_TOKEN"));
            set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN")).map(str::to_owned).or_else(stored)
        };
        // A token must be valid in a header.
        let token = token().map(|token| token.trim().to_owned());
        let token = token.filter(|token| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()));
        Self {
            cache: absolute(&cache),
            endpoint: set("HF_ENDPOINT").unwrap_or(ENDPOINT).trim_end_matches('/').to_owned(),
            token: token.map(Token),
            offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter().find(is_on),
        }
    }
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn settings(pairs: Pairs) -> Settings {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::read(&Variables::new(None, pairs))
    }

    #[test]
    fn the_cache_is_where_the_hub_says() {
        let cases: [(Pairs, &str); 6] = [
            (&[("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b"), ("HOME", "/h")], "/a"),
            (&[("HF_HUB_CACHE", ""), ("HF_HOME", "/b"), ("HOME", "/h")], "/b/hub"),
            (&[("HF_HOME", "/b"), ("XDG_CACHE_HOME", "/x")], "/b/hub"),
            (&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], "/x/huggingface/hub"),
            (&[("HOME", "/h")], "/h/.cache/huggingface/hub"),
            (&[("HF_HUB_CACHE", "~/c"), ("HOME", "/h")], "/h/c"),
        ];
        for (pairs, want) in cases {
            assert_eq!(settings(pairs).cache, Path::new(want), "{pairs:?}");
        }
    }

    #[test]
    fn offline_and_endpoint() {
        let found = settings(&[("HF_ENDPOINT", "https://mirror.example/"), ("HF_HUB_OFFLINE", "on")]);
        assert_eq!((found.endpoint.as_str(), found.offline), ("https://mirror.example", Some("HF_HUB_OFFLINE")));
        let found = settings(&[("HF_HUB_OFFLINE", "0"), ("HF_ENDPOINT", "")]);
        assert_eq!((found.endpoint.as_str(), found.offline), (ENDPOINT, None));
    }

    #[test]
    fn the_token_is_that_of_the_variable_before_that_of_the_file() {
        let folder = std::env::temp_dir().join(format!("pipe-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let home = folder.to_str().unwrap();
        let authorization = |pairs: Pairs| settings(pairs).token.map(|token| token.authorization());
        assert_eq!(authorization(&[("HF_HOME", home)]), None);
        std::fs::write(folder.join("token"), " stored\n").unwrap();
        let cases: [(Pairs, Option<&str>); 5] = [
            (&[("HF_HOME", home)], Some("Bearer stored")),
            (&[("HF_HOME", home), ("HF_TOKEN", "own")], Some("Bearer own")),
            (&[("HF_HOME", "/nowhere"), ("HF_TOKEN_PATH", &format!("{home}/token"))], Some("Bearer stored")),
            (&[("HF_HOME", home), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")], None),
            (&[("HF_TOKEN", "two\nlines")], None),
        ];
        for (pairs, want) in cases {
            assert_eq!(authorization(pairs).as_deref(), want, "{pairs:?}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
