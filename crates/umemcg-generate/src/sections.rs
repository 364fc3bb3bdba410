//! The sections of the pages beyond the command line: environment variables, files, other pages.

/// A row of a table: an item, its meaning, and the pages with it beside `umemcg.1`.
type Row = (&'static str, &'static str, &'static [&'static str]);

/// Commands that serve a mount, or check for problems with serving one.
const SERVING: &[&str] = &["umemcg-mount", "umemcg-doctor"];

/// Commands answered by a daemon, and the daemon.
const TALKING: &[&str] = &[
    "umemcg-mount",
    "umemcg-umount",
    "umemcg-sync",
    "umemcg-reload",
    "umemcg-volume",
    "umemcg-volume-add",
    "umemcg-volume-list",
    "umemcg-volume-remove",
    "umemcg-metrics",
];

/// All pages.
const ALL: &[&str] = &[];

const ENVIRONMENT: &[Row] = &[
    (
        "UMEMCG_LOG",
        "What is logged: a level (error, warn, info, debug, trace), or a filter such as `warn,umemcg_fuse=debug`. \
         It takes precedence over --verbose and over the configuration.",
        ALL,
    ),
    (
        "JOURNAL_STREAM",
        "Set by systemd. If it names the file behind stderr, the default of --log-format is journald.",
        ALL,
    ),
    (
        "NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID",
        "Set by a service manager: where the daemon says how it is, and how often; see sd_notify(3).",
        &["umemcg-mount"],
    ),
    (
        "UMEMCG_NODE_ROOT",
        "Where the root directory of a Kubernetes node is, if not /proc/1/root: volumes of the node are compared with it.",
        &["umemcg-mount"],
    ),
    ("XDG_RUNTIME_DIR", "The directory in which the sockets of users other than root are.", TALKING),
    (
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL",
        "Credentials, region and server of stores s3://BUCKET, as other programs use them.",
        SERVING,
    ),
    (
        "AWS_PROFILE, AWS_DEFAULT_PROFILE, AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE",
        "The profile of the files of the AWS command line, and where these files are.",
        SERVING,
    ),
    (
        "AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN, AWS_EC2_METADATA_DISABLED",
        "A token and its role for stores s3://BUCKET, and whether the credentials of the machine are used.",
        SERVING,
    ),
    (
        "AWS_CA_BUNDLE",
        "A file of certificates of authorities that are believed beside the system's, for every store.",
        SERVING,
    ),
    ("GOOGLE_APPLICATION_CREDENTIALS", "The file with the credentials of stores gs://BUCKET.", SERVING),
    (
        "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
        "The account of stores az://BUCKET, and its key.",
        SERVING,
    ),
    ("NO_COLOR", "If it is not empty, there are no colours.", &["umemcg-top"]),
    ("TERM", "If it is unset, empty or dumb, tables are printed as plain text.", &["umemcg-top"]),
];

const FILES: &[Row] = &[
    ("/dev/fuse", "The device of FUSE, which the daemon serves.", SERVING),
    (
        "/etc/fuse.conf",
        "Must have the line `user_allow_other` for --allow-other of users other than root.",
        SERVING,
    ),
    ("/run/umemcg", "The sockets of root's daemons, one for each mount.", TALKING),
    (
        "$XDG_RUNTIME_DIR/umemcg, /run/user/UID/umemcg, /tmp/umemcg-UID",
        "The sockets of another user's daemons: the first of these directories that the user has.",
        TALKING,
    ),
    (
        "/sbin/umount.fuse.umemcg",
        "A link to umemcg. Where it exists, umount(8) returns when everything is durable, like umemcg umount.",
        &["umemcg-mount", "umemcg-umount"],
    ),
    (
        "/sbin/mount.fuse.umemcg",
        "A link to umemcg. Where it exists, mount(8) and /etc/fstab serve mounts of the type fuse.umemcg.",
        &["umemcg-mount"],
    ),
    (
        "~/.aws/config, ~/.aws/credentials",
        "Profiles of the AWS command line, for stores s3://BUCKET.",
        SERVING,
    ),
    ("/var/lib/umemcg-csi", "The default of --state: what the plugin has done.", &["umemcg-csi"]),
];

/// Pages named by a page, although neither is the beginning of the other's name.
const RELATED: &[(&str, &str)] = &[
    ("umemcg-mount", "umemcg-umount"),
    ("umemcg-mount", "umemcg-sync"),
    ("umemcg-mount", "umemcg-reload"),
    ("umemcg-mount", "umemcg-volume"),
    ("umemcg-mount", "umemcg-top"),
    ("umemcg-mount", "umemcg-metrics"),
    ("umemcg-mount", "umemcg-doctor"),
    ("umemcg-mount", "umemcg-csi"),
    ("umemcg-umount", "umemcg-sync"),
    ("umemcg-top", "umemcg-trim"),
    ("umemcg-top", "umemcg-metrics"),
];

fn rows(table: &'static [Row], page: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let shown = move |pages: &[&str]| page == "umemcg" || pages.is_empty() || pages.contains(&page);
    table.iter().filter(move |row| shown(row.2)).map(|row| (row.0, row.1))
}

/// Returns the environment variables of a page.
pub fn environment(page: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    rows(ENVIRONMENT, page)
}

/// Returns the files of a page.
pub fn files(page: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    rows(FILES, page)
}

/// Returns whether two pages name each other.
pub fn is_related(one: &str, other: &str) -> bool {
    RELATED.iter().any(|&pair| pair == (one, other) || pair == (other, one))
}

/// Returns the pages outside section 1 named by a page.
pub fn other_pages(page: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    const OTHERS: &[(&str, &str, &[&str])] = &[
        ("fuse", "4", SERVING),
        ("umemcg.toml", "5", &["umemcg-mount", "umemcg-doctor", "umemcg-reload", "umemcg-volume"]),
        ("cgroups", "7", &["umemcg-mount", "umemcg-top", "umemcg-trim"]),
        ("mount.fuse.umemcg", "8", &["umemcg-mount"]),
        ("umount", "8", &["umemcg-umount"]),
    ];
    OTHERS
        .iter()
        .filter(move |(_, _, pages)| page == "umemcg" || pages.contains(&page))
        .map(|&(other, section, _)| (other, section))
}
