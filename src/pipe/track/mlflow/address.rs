//! The address and the credentials of the server. They are never written to disk.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::percent_decode_str;
use pipe_spec::Variables;

pub struct Address {
    /// Without credentials and without a slash at its end.
    pub base: String,
    /// The header.
    pub authorization: Option<String>,
}

impl Address {
    /// Credentials come from the address itself, else from the variables that MLflow's own clients read. An error says
    /// nothing of either.
    pub fn read(written: &str, variables: &Variables) -> Result<Self, String> {
        let text = variables.expand(written).map_err(|name| format!("the variable ${{{name}}} is not set"))?;
        let (scheme, rest) = text.split_once("://").ok_or("the address does not begin with https:// or http://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
        let authorization = user.map(from_address).or_else(|| from_variables(variables));
        Ok(Self { base: format!("{scheme}://{host}{path}"), authorization })
    }
}

fn from_address(user: &str) -> String {
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    basic(&decoded(user), &decoded(password))
}

fn from_variables(variables: &Variables) -> Option<String> {
    let get = |name: &str| variables.get(name).filter(|value| !value.is_empty());
    let named = get("MLFLOW_TRACKING_USERNAME").zip(get("MLFLOW_TRACKING_PASSWORD"));
    let token = || get("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
    named.map(|(user, password)| basic(user, password)).or_else(token)
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(written: &str, variables: &[(&str, &str)]) -> (String, Option<String>) {
        let pairs = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let address = Address::read(written, &Variables::new(None, pairs)).unwrap();
        (address.base, address.authorization)
    }

    #[test]
    fn credentials_come_from_the_address_or_from_variables() {
        let basic = Some("Basic YWRhOnA6QHNz".to_owned());
        assert_eq!(read("http://h:5000/", &[]), ("http://h:5000".to_owned(), None));
        assert_eq!(read("https://ada:p%3A%40ss@h/ml/", &[]), ("https://h/ml".to_owned(), basic.clone()));
        let named = [("MLFLOW_TRACKING_USERNAME", "ada"), ("MLFLOW_TRACKING_PASSWORD", "p:@ss")];
        assert_eq!(read("https://h", &named).1, basic);
        let token = [("U", "https://h/x?y"), ("MLFLOW_TRACKING_TOKEN", "t")];
        assert_eq!(read("${U}", &token), ("https://h/x".to_owned(), Some("Bearer t".to_owned())));
    }
}
