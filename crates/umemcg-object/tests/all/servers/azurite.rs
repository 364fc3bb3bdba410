//! Azurite, an emulator of Azure's blobs that keeps everything in memory.

use std::process::Command;
use std::sync::Arc;

use object_store::azure::{MicrosoftAzure, MicrosoftAzureBuilder};
use umemcg_object::{ObjectOptions, open};
use umemcg_vfs::bucket::Bucket;

use super::Running;
use super::weed::{free_pairs, installed};

/// The account that every emulator has, with the key that its documents name.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Makes a container: the client library cannot.
const MAKE_CONTAINER: &str = r#"
import base64, email.utils, hashlib, hmac, sys, urllib.request
endpoint, account, key, container = sys.argv[1:]
date = email.utils.formatdate(usegmt=True)
signed = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:2021-08-06\n/{account}/{account}/{container}\nrestype:container"
mac = hmac.new(base64.b64decode(key), signed.encode(), hashlib.sha256).digest()
headers = {"x-ms-date": date, "x-ms-version": "2021-08-06",
           "Authorization": f"SharedKey {account}:{base64.b64encode(mac).decode()}"}
request = urllib.request.Request(f"{endpoint}/{container}?restype=container", method="PUT", headers=headers)
urllib.request.urlopen(request)
"#;

pub struct Azurite(Running);

impl Azurite {
    pub fn start() -> Self {
        let start = |_| {
            let port = free_pairs()[0];
            let mut command = Command::new(installed("azurite-blob"));
            // The client knows a newer version of the protocol than the emulator.
            command.args([
                "--silent",
                "--disableTelemetry",
                "--skipApiVersionCheck",
                "--inMemoryPersistence",
            ]);
            command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()]);
            Running::start(&mut command, port)
        };
        Self((0..20).find_map(start).expect("Azurite ends"))
    }

    fn endpoint(&self) -> String {
        format!("{}/{ACCOUNT}", self.0.endpoint())
    }

    /// Returns a client beside ours, with a new container.
    pub fn store(&self, container: &str) -> MicrosoftAzure {
        let mut command = Command::new(installed("python"));
        command.args(["-c", MAKE_CONTAINER, &self.endpoint(), ACCOUNT, KEY, container]);
        let run = command.output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = MicrosoftAzureBuilder::new()
            .with_endpoint(self.endpoint())
            .with_allow_http(true)
            .with_container_name(container)
            .with_account(ACCOUNT)
            .with_access_key(KEY);
        builder.build().unwrap()
    }

    /// Returns the prefix of a container as a volume sees it.
    pub fn bucket(&self, place: &str) -> Arc<dyn Bucket> {
        // All tests of the process use the same.
        let credentials = [("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT), ("AZURE_STORAGE_ACCOUNT_KEY", KEY)];
        let is_set = credentials.iter().all(|(name, value)| std::env::var(name).as_deref() == Ok(value));
        assert!(is_set, "run with {credentials:?} in the environment (make test-object does)");
        let options = ObjectOptions { endpoint: Some(self.endpoint()), ..ObjectOptions::default() };
        open(&format!("az://{place}"), &options).unwrap()
    }
}
