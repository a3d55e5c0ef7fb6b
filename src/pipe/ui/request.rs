//! Requests of a browser: the names and values of an address or a form.

use percent_encoding::percent_decode_str;

/// Names and values that are read, at most.
const MAX_PAIRS: usize = 200;

/// The names and values of a query, or of a form.
#[derive(Clone, Debug, Default)]
pub struct Params(Vec<(String, String)>);

impl Params {
    pub fn read(text: &str) -> Self {
        let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).take(MAX_PAIRS);
        Self(
            pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(a, b)| (decode(a), decode(b))).collect(),
        )
    }

    /// The first value of this name; nothing where it is empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|pair| pair.0 == name && !pair.1.is_empty());
        found.map(|pair| pair.1.as_str())
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |pair| pair.0 == name && !pair.1.is_empty()).map(|pair| pair.1.as_str())
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.trim().parse().ok().filter(|number: &f64| number.is_finite())
    }

    /// The same as an address, with one value replaced, or left out where it is empty.
    pub fn with(&self, name: &str, value: &str) -> String {
        let kept = self.0.iter().filter(|pair| pair.0 != name && !pair.1.is_empty());
        let new = (name.to_owned(), value.to_owned());
        let pairs = kept.chain([&new].into_iter().filter(|new| !new.1.is_empty()));
        let text: Vec<String> = pairs.map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
        format!("?{}", text.join("&"))
    }
}

/// A text as a part of an address.
pub fn encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_written_again() {
        let params = Params::read("q=a+b%26c&run=1&run=2&empty=&page=3");
        assert_eq!((params.get("q"), params.get("empty"), params.number("page")), (Some("a b&c"), None, Some(3.0)));
        assert_eq!(params.all("run").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(params.with("page", "4"), "?q=a%20b%26c&run=1&run=2&page=4");
        assert_eq!(params.with("q", ""), "?run=1&run=2&page=3");
        assert_eq!(Params::read(&"a=b&".repeat(1000)).0.len(), MAX_PAIRS);
    }
}
