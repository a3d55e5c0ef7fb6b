//! Opens a bucket with the keys that other tools use: from variables and from files of the user. They go into requests alone:
//! nothing here is written, logged or part of an error.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::list::PaginatedListStore;
use object_store::{ObjectStore, RetryConfig};
use pipe_spec::Variables;
use pipe_spec::bucket::{BucketAddress, Scheme};

use super::connector::Connector;
use crate::system::files;

/// A bucket as the crate serves it.
pub struct Store {
    pub objects: Arc<dyn ObjectStore>,
    pub lists: Arc<dyn PaginatedListStore>,
}

/// Opens the bucket of an address; otherwise why that cannot be, for a person. Sends no request.
pub fn open(address: &BucketAddress, known: &Variables, retry: RetryConfig) -> Result<Store, String> {
    match address.scheme {
        Scheme::S3 => s3(address, known, retry),
        Scheme::Gs => gs(address, known, retry),
        Scheme::Az => az(address, known, retry),
    }
}

fn store<S: ObjectStore + PaginatedListStore + Clone>(store: S) -> Store {
    Store { objects: Arc::new(store.clone()), lists: Arc::new(store) }
}

fn set<'a>(known: &'a Variables, names: &[&str]) -> Option<&'a str> {
    names.iter().find_map(|name| known.get(name).map(str::trim).filter(|value| !value.is_empty()))
}

fn is_on(known: &Variables, name: &str) -> bool {
    set(known, &[name]).is_some_and(|value| matches!(value, "1" | "true"))
}

/// The variable of these that is used where the `.env` file of the working directory alone has set it. That file may be somebody
/// else's: what it chooses as an address gets keys of that file, and none of the user's own.
fn foreign<'n>(known: &Variables, names: &[&'n str]) -> Option<&'n str> {
    let used = names.iter().find(|name| set(known, &[name]).is_some());
    used.copied().filter(|name| known.is_from_file(name))
}

/// The error of keys of the user that would go to such an address.
fn not_sent(name: &str, keys: &str) -> String {
    format!(
        "{name} is set in .env, which may be somebody else's, so that the keys of the environment and of the home folder are \
         not sent there: set {name} in the environment, or {keys} in .env too"
    )
}

/// Variables whose value is sent as a key, or that name a file or an address from which one is read.
fn refuse_from_file(known: &Variables, names: &[&str]) -> Result<(), String> {
    match names.iter().find(|name| foreign(known, &[name]).is_some()) {
        Some(name) => Err(format!("{name} may not be set in .env: set it in the environment")),
        None => Ok(()),
    }
}

/// Refuses what would become more than a part of a host name.
fn check_label(name: &str, value: &str) -> Result<(), String> {
    let is_label = value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_label { Ok(()) } else { Err(format!("{name} has other characters than letters, digits and hyphens")) }
}

/// A token that goes into a header: most of such files end with a line break, which the crate does not take.
const LARGEST_TOKEN: u64 = 64 << 10;

fn check_token_file(name: &str, path: &str) -> Result<(), String> {
    let fail = |what: &str| Err(format!("the file that {name} names {what}"));
    match files::read(std::path::Path::new(path), LARGEST_TOKEN) {
        Ok(bytes) if bytes.iter().all(u8::is_ascii_graphic) => Ok(()),
        Ok(_) => fail("is no token: it has blanks or line breaks"),
        Err(_) => fail("cannot be read"),
    }
}

/// Whether this machine is one that a cloud lends, which has keys of its own.
fn is_machine_of(vendor: &str) -> bool {
    ["sys_vendor", "product_name", "bios_vendor"].iter().any(|file| {
        std::fs::read_to_string(format!("/sys/class/dmi/id/{file}")).is_ok_and(|found| found.contains(vendor))
    })
}

fn s3(address: &BucketAddress, known: &Variables, retry: RetryConfig) -> Result<Store, String> {
    use AmazonS3ConfigKey as Key;
    const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
    const CONTAINER_TOKEN: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";
    let profile = Profile::read(known)?;
    let region = set(known, &["AWS_REGION", "AWS_DEFAULT_REGION"]).or_else(|| profile.get("region"));
    let endpoint = set(known, &ENDPOINTS).or_else(|| profile.get("endpoint_url"));
    let foreign_endpoint = foreign(known, &ENDPOINTS);
    let keys = if foreign_endpoint.is_some() { known.of_file() } else { known.clone() };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&address.bucket)
        .with_region(region.unwrap_or("us-east-1"))
        .with_allow_http(true)
        .with_retry(retry)
        .with_http_connector(Connector);
    builder = endpoint.into_iter().fold(builder, AmazonS3Builder::with_endpoint);
    let pair = |id: Option<&str>, secret: Option<&str>, token: Option<&str>| {
        let token = token.map(str::to_owned);
        Some((id?.to_owned(), secret?.to_owned(), token))
    };
    let (id, secret) = (set(&keys, &["AWS_ACCESS_KEY_ID"]), set(&keys, &["AWS_SECRET_ACCESS_KEY"]));
    if id.is_some() != secret.is_some() {
        return Err("of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY one is set and the other is not".to_owned());
    }
    let given = pair(id, secret, set(&keys, &["AWS_SESSION_TOKEN"]));
    let stored = || {
        let [id, secret, token] = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];
        pair(profile.get(id), profile.get(secret), profile.get(token))
    };
    let of_machine = [
        (Key::WebIdentityTokenFile, "AWS_WEB_IDENTITY_TOKEN_FILE"),
        (Key::RoleArn, "AWS_ROLE_ARN"),
        (Key::RoleSessionName, "AWS_ROLE_SESSION_NAME"),
        (Key::ContainerCredentialsRelativeUri, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
        (Key::ContainerCredentialsFullUri, "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        (Key::ContainerAuthorizationTokenFile, CONTAINER_TOKEN),
    ];
    let lent: Vec<_> = of_machine.into_iter().filter_map(|(key, name)| Some((key, set(known, &[name])?))).collect();
    // Part of the names of Amazon's hosts.
    let has_label = || check_label("the region (AWS_REGION)", region.unwrap_or_default());
    if endpoint.is_none() {
        has_label()?;
    }
    if is_on(known, "AWS_SKIP_SIGNATURE") {
        builder = builder.with_skip_signature(true);
    } else if let (Some(name), None) = (foreign_endpoint, &given) {
        return Err(not_sent(name, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
    } else if let Some((id, secret, token)) = given.or_else(stored) {
        builder = builder.with_access_key_id(id).with_secret_access_key(secret);
        builder = token.into_iter().fold(builder, AmazonS3Builder::with_token);
    } else if !lent.is_empty() {
        refuse_from_file(known, &of_machine.map(|(_, name)| name))?;
        has_label()?;
        set(known, &[CONTAINER_TOKEN]).map_or(Ok(()), |path| check_token_file(CONTAINER_TOKEN, path))?;
        builder = lent.into_iter().fold(builder, |builder, (key, value)| builder.with_config(key, value));
    } else if let Some(way) = profile.other_way() {
        return Err(format!(
            "the profile {:?} logs in by {way}, which pipe does not do: \
             `eval \"$(aws configure export-credentials --profile {} --format env)\"` sets its keys as variables",
            profile.name, profile.name
        ));
    } else if !is_machine_of("Amazon EC2") {
        return Err(format!(
            "there are no keys for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE to a profile of \
             ~/.aws/credentials (the profile {:?} has none); a public bucket needs AWS_SKIP_SIGNATURE=true",
            profile.name
        ));
    }
    builder.build().map(store).map_err(|_| unusable("AWS_REGION and AWS_ENDPOINT_URL"))
}

/// The error of a configuration that the crate refuses. Its own words may hold a value.
fn unusable(variables: &str) -> String {
    format!("the settings for it cannot be used: check {variables}")
}

fn gs(address: &BucketAddress, known: &Variables, retry: RetryConfig) -> Result<Store, String> {
    use GoogleConfigKey as Key;
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&address.bucket)
        .with_retry(retry)
        .with_http_connector(Connector);
    let inline = set(known, &["GOOGLE_SERVICE_ACCOUNT_KEY"]);
    let file = set(known, &["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"]);
    let user =
        known.get("HOME").map(|home| PathBuf::from(home).join(".config/gcloud/application_default_credentials.json"));
    let emulator = set(known, &["STORAGE_EMULATOR_HOST"]);
    if let Some(endpoint) = emulator {
        let endpoint = if endpoint.contains("://") { endpoint.to_owned() } else { format!("http://{endpoint}") };
        builder = builder.with_base_url(&endpoint).with_skip_signature(true);
    } else if is_on(known, "GOOGLE_SKIP_SIGNATURE") {
        builder = builder.with_skip_signature(true);
    } else if let Some(key) = inline {
        builder = builder.with_service_account_key(key);
    } else if let Some(file) = file {
        if !std::path::Path::new(file).is_file() {
            return Err("the file that GOOGLE_APPLICATION_CREDENTIALS names is not there".to_owned());
        }
        builder = builder.with_application_credentials(file);
    } else if let Some(user) = user.filter(|user| user.is_file()) {
        builder = builder.with_config(Key::ApplicationCredentials, user.to_string_lossy());
    } else if !is_machine_of("Google") {
        return Err(
            "there are no keys for Google Cloud Storage: set GOOGLE_APPLICATION_CREDENTIALS to a file with a service \
                    account, or run `gcloud auth application-default login`; a public bucket needs \
                    GOOGLE_SKIP_SIGNATURE=true"
                .to_owned(),
        );
    }
    builder.build().map(store).map_err(|_| unusable("the file that GOOGLE_APPLICATION_CREDENTIALS names"))
}

fn az(address: &BucketAddress, known: &Variables, retry: RetryConfig) -> Result<Store, String> {
    use AzureConfigKey as Key;
    const CONNECTION: &str = "AZURE_STORAGE_CONNECTION_STRING";
    const ENDPOINT: &str = "AZURE_STORAGE_ENDPOINT";
    let in_connection = |connection: &str| connection.split(';').any(|part| part.starts_with("BlobEndpoint="));
    let chosen_by = if set(known, &[CONNECTION]).is_some_and(in_connection) { CONNECTION } else { ENDPOINT };
    let foreign_endpoint = foreign(known, &[chosen_by]);
    refuse_from_file(known, &["AZURE_FEDERATED_TOKEN_FILE"])?;
    // It is no secret.
    let account = set(known, &["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"]);
    let of_file = foreign_endpoint.map(|_| known.of_file());
    let known = of_file.as_ref().unwrap_or(known);
    let connection = set(known, &[CONNECTION]).unwrap_or_default();
    let part = |name: &str| {
        connection.split(';').find_map(|part| part.split_once('=').filter(|(key, _)| *key == name).map(|found| found.1))
    };
    let settings = [
        (Key::AccountName, part("AccountName").or(account)),
        (
            Key::AccessKey,
            part("AccountKey").or_else(|| {
                set(known, &["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY"])
            }),
        ),
        (
            Key::SasKey,
            part("SharedAccessSignature").or_else(|| set(known, &["AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"])),
        ),
        (Key::Endpoint, part("BlobEndpoint").or_else(|| set(known, &[ENDPOINT]))),
        (Key::ClientId, set(known, &["AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID"])),
        (Key::ClientSecret, set(known, &["AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"])),
        (Key::AuthorityId, set(known, &["AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID"])),
        (Key::FederatedTokenFile, set(known, &["AZURE_FEDERATED_TOKEN_FILE"])),
        (Key::SkipSignature, is_on(known, "AZURE_SKIP_SIGNATURE").then_some("true")),
    ];
    for (key, name) in [(Key::AccountName, "AZURE_STORAGE_ACCOUNT"), (Key::AuthorityId, "AZURE_TENANT_ID")] {
        let value = settings.iter().find(|(name, _)| *name == key).and_then(|(_, value)| *value);
        // A tenant may be named by its domain.
        check_label(name, &value.unwrap_or_default().replace('.', "-"))?;
    }
    let has = |key: Key| settings.iter().any(|(name, value)| *name == key && value.is_some());
    if !has(Key::AccountName) && !has(Key::Endpoint) {
        return Err("the storage account is not known: set AZURE_STORAGE_ACCOUNT, or AZURE_STORAGE_CONNECTION_STRING"
            .to_owned());
    }
    let ways = [Key::AccessKey, Key::SasKey, Key::ClientSecret, Key::FederatedTokenFile, Key::SkipSignature];
    // With anything less the crate would ask the machine for its own keys.
    let whole = [Key::AccessKey, Key::SasKey, Key::SkipSignature];
    if let Some(name) = foreign_endpoint.filter(|_| !whole.into_iter().any(has)) {
        return Err(not_sent(name, "AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN"));
    }
    if !ways.into_iter().any(has) && !is_machine_of("Microsoft") {
        return Err("there are no keys for Azure Blob Storage: set AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or \
                    AZURE_STORAGE_CONNECTION_STRING"
            .to_owned());
    }
    let builder = MicrosoftAzureBuilder::new()
        .with_container_name(&address.bucket)
        .with_allow_http(true)
        .with_retry(retry)
        .with_http_connector(Connector);
    let given = settings.into_iter().filter_map(|(key, value)| Some((key, value?)));
    let builder = given.fold(builder, |builder, (key, value)| builder.with_config(key, value));
    builder.build().map(store).map_err(|_| unusable("the variables AZURE_STORAGE_..."))
}

/// A profile of the files that the tools of AWS keep.
struct Profile {
    name: String,
    values: BTreeMap<String, String>,
}

impl Profile {
    fn read(known: &Variables) -> Result<Self, String> {
        // A file that the folder brings could name an address beside the keys of another one.
        refuse_from_file(known, &["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"])?;
        let asked = set(known, &["AWS_PROFILE"]);
        let name = asked.unwrap_or("default").to_owned();
        let home = PathBuf::from(known.get("HOME").unwrap_or_default());
        let file = |variable: &str, default: &str| {
            let path = set(known, &[variable]).map_or_else(|| home.join(default), PathBuf::from);
            std::fs::read_to_string(path).unwrap_or_default()
        };
        let config = file("AWS_CONFIG_FILE", ".aws/config");
        let keys = file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
        let section = if name == "default" { name.clone() } else { format!("profile {name}") };
        let (config, keys) = (read_section(&config, &section), read_section(&keys, &name));
        if asked.is_some() && config.is_none() && keys.is_none() {
            return Err(format!(
                "AWS_PROFILE is {name:?}, and neither ~/.aws/credentials nor ~/.aws/config has such a profile"
            ));
        }
        // The file with the keys wins.
        let values = config.into_iter().chain(keys).flatten().collect();
        Ok(Self { name, values })
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A way to log in that needs more than reading keys.
    fn other_way(&self) -> Option<&'static str> {
        const WAYS: [(&str, &str); 5] = [
            ("sso_session", "single sign-on"),
            ("sso_start_url", "single sign-on"),
            ("credential_process", "credential_process"),
            ("role_arn", "role_arn"),
            ("login_session", "`aws login`"),
        ];
        WAYS.into_iter().find(|(key, _)| self.values.contains_key(*key)).map(|(_, way)| way)
    }
}

/// The values of one section of an INI file; nothing where it has no such section.
fn read_section(text: &str, section: &str) -> Option<BTreeMap<String, String>> {
    let mut found: Option<BTreeMap<String, String>> = None;
    let mut inside = false;
    for line in text.lines().filter(|line| !line.trim_start().starts_with(['#', ';'])) {
        if let Some(name) = line.trim().strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            inside = name.split_whitespace().eq(section.split_whitespace());
            if inside {
                found.get_or_insert_default();
            }
        } else if let (true, Some((key, value))) = (inside && !line.starts_with([' ', '\t']), line.split_once('='))
            && let Some(values) = &mut found
        {
            values.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and values of environment variables.
    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn opened(address: &str, pairs: Pairs<'_>) -> Result<(), String> {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let address = BucketAddress::parse(address).unwrap();
        open(&address, &Variables::new(None, pairs), RetryConfig::default()).map(drop)
    }

    #[test]
    fn sections_of_a_file() {
        let text = "# x\n[default]\nregion = eu-west-1\ns3 =\n  addressing_style = path\n[profile  work]\nregion=us-west-2\n\
                    aws_access_key_id = A=B\n[profile empty]\n";
        let value = |section: &str, key: &str| read_section(text, section).and_then(|values| values.get(key).cloned());
        assert_eq!(value("default", "region").as_deref(), Some("eu-west-1"));
        assert_eq!(value("default", "addressing_style"), None);
        assert_eq!(value("profile work", "aws_access_key_id").as_deref(), Some("A=B"));
        assert_eq!(read_section(text, "profile empty"), Some(BTreeMap::new()));
        assert_eq!(read_section(text, "work"), None);
    }

    #[test]
    fn keys_of_s3() {
        let folder = std::env::temp_dir().join(format!("pipe-aws-{}", std::process::id()));
        std::fs::create_dir_all(folder.join(".aws")).unwrap();
        let keys = "[default]\n[work]\naws_access_key_id=s3cret\naws_secret_access_key=s3cret\n";
        std::fs::write(folder.join(".aws/credentials"), keys).unwrap();
        std::fs::write(folder.join(".aws/config"), "[profile sso]\nsso_session = x\nregion = s3cret\n").unwrap();
        let home = ("HOME", folder.to_str().unwrap());
        let cases: [(Pairs<'_>, Option<&str>); 8] = [
            (&[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_SESSION_TOKEN", "c")], None),
            (&[home, ("AWS_PROFILE", "work")], None),
            (&[("AWS_SKIP_SIGNATURE", "true")], None),
            (&[("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x")], None),
            (&[home], Some("the profile \"default\" has none")),
            (&[home, ("AWS_PROFILE", "nope")], Some("neither ~/.aws/credentials nor")),
            (&[home, ("AWS_PROFILE", "sso")], Some("by single sign-on, which pipe does not do")),
            (&[("AWS_ACCESS_KEY_ID", "s3cret")], Some("one is set and the other is not")),
        ];
        for (pairs, want) in cases {
            let found = opened("s3://data", pairs).err();
            let names: Vec<_> = pairs.iter().map(|pair| pair.0).collect();
            assert_eq!(found.is_some(), want.is_some(), "{names:?} {found:?}");
            let said = found.unwrap_or_default();
            assert!(said.contains(want.unwrap_or_default()) && !said.contains("s3cret"), "{names:?} {said}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// A folder that somebody else has written may choose where a bucket is, but not what of the user's is sent there.
    #[test]
    fn a_file_of_the_folder_gets_no_keys_of_the_user() {
        let keys = [("AWS_ACCESS_KEY_ID", "s3cret"), ("AWS_SECRET_ACCESS_KEY", "s3cret")];
        let own = "AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=b\n";
        let account = [("AZURE_STORAGE_ACCOUNT", "a"), ("AZURE_STORAGE_SAS_TOKEN", "sig=s3cret")];
        let stored = tempfile::tempdir().unwrap();
        std::fs::create_dir(stored.path().join(".aws")).unwrap();
        let text = "[default]\naws_access_key_id=s3cret\naws_secret_access_key=s3cret\n";
        std::fs::write(stored.path().join(".aws/credentials"), text).unwrap();
        let home = [("HOME", stored.path().to_str().unwrap())];
        let in_string = [("AZURE_STORAGE_CONNECTION_STRING", "AccountName=a;AccountKey=s3cret")];
        let empty = "AWS_ENDPOINT_URL=http://evil\nAWS_ACCESS_KEY_ID=\nAWS_SECRET_ACCESS_KEY=\n";
        let azurite = "AZURE_STORAGE_CONNECTION_STRING=AccountName=a;AccountKey=Yg==;BlobEndpoint=http://own";
        let not_own = Some("AZURE_STORAGE_ENDPOINT is set in");
        let cases: [(&str, String, Pairs<'_>, Option<&str>); 19] = [
            ("s3://data", empty.into(), &home, Some("AWS_ENDPOINT_URL is set in .env")),
            ("s3://data", format!("AWS_ROLE_ARN=arn:x\n{own}"), &[], None),
            ("az://box", "AZURE_STORAGE_ENDPOINT=http://evil\nAZURE_STORAGE_ACCOUNT=a".into(), &in_string, not_own),
            ("az://box", "AZURE_STORAGE_ENDPOINT=http://evil\nAZURE_SKIP_SIGNATURE=0".into(), &[], not_own),
            ("az://box", "AZURE_STORAGE_ENDPOINT=http://evil\nAZURE_CLIENT_SECRET=x".into(), &[], not_own),
            ("az://box", azurite.into(), &[("AZURE_CLIENT_SECRET", "s3cret")], None),
            ("s3://data", "AWS_ENDPOINT_URL=http://evil".into(), &keys, Some("AWS_ENDPOINT_URL is set in .env")),
            ("s3://data", "AWS_ENDPOINT_URL_S3=http://evil".into(), &keys, Some("AWS_ENDPOINT_URL_S3 is set in .env")),
            ("s3://data", format!("AWS_ENDPOINT_URL=http://own\n{own}"), &[], None),
            ("s3://data", "AWS_ENDPOINT_URL=http://own\nAWS_SKIP_SIGNATURE=true".into(), &keys, None),
            ("s3://data", own.into(), &[("AWS_ENDPOINT_URL", "http://own")], None),
            ("s3://data", "AWS_REGION=evil.example/x?".into(), &keys, Some("(AWS_REGION) has other characters")),
            ("s3://data", "AWS_WEB_IDENTITY_TOKEN_FILE=/etc/passwd".into(), &[], Some("may not be set in .env")),
            ("s3://data", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=/x".into(), &[], Some("may not be set in .env")),
            ("s3://data", "AWS_CONFIG_FILE=./evil".into(), &keys, Some("AWS_CONFIG_FILE may not be set in .env")),
            (
                "az://box",
                "AZURE_STORAGE_ENDPOINT=http://evil".into(),
                &account,
                Some("AZURE_STORAGE_ENDPOINT is set in"),
            ),
            (
                "az://box",
                "AZURE_STORAGE_CONNECTION_STRING=AccountName=a;BlobEndpoint=http://evil".into(),
                &account,
                Some("AZURE_STORAGE_CONNECTION_STRING is set in .env"),
            ),
            ("az://box", "AZURE_STORAGE_ACCOUNT=evil.example/x".into(), &account[1..], Some("has other characters")),
            (
                "az://box",
                "AZURE_STORAGE_ENDPOINT=http://own\nAZURE_STORAGE_SAS_TOKEN=sig=1".into(),
                &account[..1],
                None,
            ),
        ];
        for (address, file, pairs, want) in cases {
            let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let known = Variables::new(Some(&file), pairs);
            let said = open(&BucketAddress::parse(address).unwrap(), &known, RetryConfig::default()).map(drop).err();
            assert_eq!(said.is_some(), want.is_some(), "{file} {said:?}");
            let said = said.unwrap_or_default();
            assert!(said.contains(want.unwrap_or_default()) && !said.contains("s3cret"), "{file} {said}");
        }
    }

    #[test]
    fn a_token_that_no_header_can_hold_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let pairs = [
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/x"),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file.to_str().unwrap()),
        ];
        for (text, want) in [("s3cret", None), ("s3cret\n", Some("it has blanks or line breaks"))] {
            std::fs::write(&file, text).unwrap();
            let said = opened("s3://data", &pairs).err();
            assert_eq!(said.is_some(), want.is_some(), "{text:?} {said:?}");
            let said = said.unwrap_or_default();
            assert!(said.contains(want.unwrap_or_default()) && !said.contains("s3cret"), "{said}");
        }
    }

    #[test]
    fn keys_of_the_others() {
        let key = "czNjcmV0";
        let connection = format!("AccountName=a;AccountKey={key};BlobEndpoint=http://127.0.0.1:1/a");
        let cases: [(&str, Pairs<'_>, Option<&str>); 8] = [
            ("az://box", &[("AZURE_STORAGE_CONNECTION_STRING", &connection)], None),
            ("az://box", &[("AZURE_STORAGE_ACCOUNT", "a"), ("AZURE_STORAGE_KEY", key)], None),
            ("az://box", &[("AZURE_STORAGE_ACCOUNT", "a"), ("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=2")], None),
            ("az://box", &[("AZURE_STORAGE_KEY", key)], Some("set AZURE_STORAGE_ACCOUNT")),
            ("az://box", &[("AZURE_STORAGE_ACCOUNT", "a")], Some("there are no keys for Azure")),
            ("gs://box", &[("STORAGE_EMULATOR_HOST", "127.0.0.1:1")], None),
            ("gs://box", &[("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/s3cret")], Some("is not there")),
            ("gs://box", &[], Some("gcloud auth application-default login")),
        ];
        for (address, pairs, want) in cases {
            let said = opened(address, pairs).err();
            assert_eq!(said.is_some(), want.is_some(), "{address} {pairs:?} {said:?}");
            let said = said.unwrap_or_default();
            assert!(
                said.contains(want.unwrap_or_default()) && !said.contains("s3cret") && !said.contains(key),
                "{said}"
            );
        }
    }
}
