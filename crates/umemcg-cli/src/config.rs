//! `umemcg mount --config`: groups with their limits, rules and volumes from a TOML file.
//!
//! Limits have the names of control files, and are set by the same code as a write to the mounted
//! file, so the same values are valid. Every error is reported with its line before anything is
//! mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Spanned, Value};
use umemcg_control::{ControlTree, NodeId};
use umemcg_fuse::Rule;
use umemcg_metrics::{MetricsAddress, WrongAddress};

use crate::endpoint::VolumeSource;
use crate::exit::Failure;
use crate::limits::{LimitName, LimitTexts, limit_file, make_group, write_limit};
use crate::log::check_filter;
use crate::mount_arguments::{ControlStyle, PageCache};
use crate::pool::PoolSize;
use crate::stores::{AttributeSource, StoreOptions, StoreSource};
use crate::writes::Writes;

/// The content of the file; any other key is an error.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    pool: Option<Spanned<String>>,
    /// Whether protection not claimed by a child is distributed among all children.
    recursive_protection: Option<bool>,
    /// The version of the control files to show.
    control_style: Option<ControlStyle>,
    /// The cache for file pages.
    page_cache: Option<PageCache>,
    /// No other program changes the directories.
    #[serde(default)]
    exclusive: bool,
    /// Whether to watch for other programs' changes.
    watch: Option<bool>,
    /// The address for metrics.
    metrics: Option<Spanned<String>>,
    /// The filter of the log.
    log: Option<Spanned<String>>,
    /// Levels below the root with metrics of their own.
    metrics_depth: Option<usize>,
    #[serde(default)]
    rules: Vec<Spanned<String>>,
    /// The most groups created by rules.
    rule_groups_max: Option<usize>,
    /// By path, such as `/pods/a`: the control files to write, and their values.
    #[serde(default)]
    groups: BTreeMap<Spanned<String>, BTreeMap<Spanned<String>, Spanned<Value>>>,
    #[serde(default)]
    volumes: BTreeMap<Spanned<String>, VolumeContent>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeContent {
    dir: Option<PathBuf>,
    #[serde(default)]
    tmpfs: bool,
    size: Option<Spanned<String>>,
    store: Option<String>,
    endpoint: Option<String>,
    region: Option<String>,
    #[serde(default)]
    anonymous: bool,
    freshness: Option<String>,
    staging: Option<PathBuf>,
    staging_size: Option<String>,
    attributes: Option<AttributeSource>,
    writes: Option<Writes>,
}

/// A parsed configuration file. The default is an empty one.
#[derive(Debug, Default)]
pub struct Config {
    path: PathBuf,
    text: String,
    content: Content,
}

/// A volume of the file.
#[derive(Debug)]
pub struct VolumeEntry<'a> {
    config: &'a Config,
    name: &'a Spanned<String>,
    content: &'a VolumeContent,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Failure`] with the line.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::Usage(format!("cannot read {}: {error}", path.display())))?;
        Self::parse(path, text)
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// [`Failure`] with the line.
    pub fn parse(path: &Path, text: String) -> Result<Self, Failure> {
        let content = toml::from_str(&text)
            .map_err(|error| Failure::Usage(format!("{}: {error}", path.display()).trim_end().into()))?;
        Ok(Self { path: path.to_owned(), text, content })
    }

    /// Returns a failure with the line of `at`.
    fn wrong<T>(&self, at: &Spanned<T>, what: impl fmt::Display) -> Failure {
        Failure::Usage(self.message(at, what))
    }

    /// Returns a message with the line of `at`.
    fn message<T>(&self, at: &Spanned<T>, what: impl fmt::Display) -> String {
        let line = 1 + self.text[..at.span().start].matches('\n').count();
        format!("{}:{line}: {what}", self.path.display())
    }

    /// Returns the size of the pool, if the file sets one.
    ///
    /// # Errors
    /// [`Failure`] with the line.
    pub fn pool(&self) -> Result<Option<PoolSize>, Failure> {
        let parse =
            |pool: &Spanned<String>| pool.get_ref().parse().map_err(|what: String| self.wrong(pool, what));
        self.content.pool.as_ref().map(parse).transpose()
    }

    /// Returns the address for metrics, if the file sets one.
    ///
    /// # Errors
    /// [`Failure`] with the line.
    pub fn metrics(&self) -> Result<Option<MetricsAddress>, Failure> {
        let parse = |address: &Spanned<String>| {
            address.get_ref().parse().map_err(|what: WrongAddress| self.wrong(address, what))
        };
        self.content.metrics.as_ref().map(parse).transpose()
    }

    /// Returns the filter of the log, if the file sets one.
    ///
    /// # Errors
    /// [`Failure`] with the line.
    pub fn log(&self) -> Result<Option<&str>, Failure> {
        let text = self.content.log.as_ref();
        let checked = text.map_or(Ok(()), |text| {
            check_filter(Some(text.get_ref())).map_err(|error| self.wrong(text, error))
        });
        checked.map(|()| text.map(|text| text.get_ref().as_str()))
    }

    /// Returns the settings fixed for the life of a mount, with their values in the file.
    pub fn fixed_settings(&self) -> FixedSettings {
        let Content { pool, metrics, metrics_depth, rule_groups_max, .. } = &self.content;
        let Content { recursive_protection, control_style, page_cache, exclusive, watch, .. } = &self.content;
        let text = |value: &Option<Spanned<String>>| format!("{:?}", value.as_ref().map(Spanned::get_ref));
        [
            ("pool", text(pool)),
            ("recursive_protection", format!("{recursive_protection:?}")),
            ("control_style", format!("{control_style:?}")),
            ("page_cache", format!("{page_cache:?}")),
            ("exclusive", exclusive.to_string()),
            ("watch", format!("{watch:?}")),
            ("metrics", text(metrics)),
            ("metrics_depth", format!("{metrics_depth:?}")),
            ("rule_groups_max", format!("{rule_groups_max:?}")),
        ]
    }

    /// Returns the number of levels of groups with metrics of their own, if the file sets it.
    pub fn metrics_depth(&self) -> Option<usize> {
        self.content.metrics_depth
    }

    /// Returns whether protection not claimed by a child is distributed, if the file sets it.
    pub fn recursive_protection(&self) -> Option<bool> {
        self.content.recursive_protection
    }

    /// Returns the control style, if the file sets one.
    pub fn control_style(&self) -> Option<ControlStyle> {
        self.content.control_style
    }

    /// Returns whether the file rules out changes by other programs.
    pub fn exclusive(&self) -> bool {
        self.content.exclusive
    }

    /// Returns whether to watch for other programs' changes. Defaults to true.
    pub fn watch(&self) -> bool {
        self.content.watch != Some(false)
    }

    /// Returns the cache for file pages, if the file sets one.
    pub fn page_cache(&self) -> Option<PageCache> {
        self.content.page_cache
    }

    /// Returns the rules, in the order of the file.
    ///
    /// # Errors
    /// [`Failure`] with the line.
    pub fn rules(&self) -> Result<Vec<Rule>, Failure> {
        let parse = |rule: &Spanned<String>| rule.get_ref().parse().map_err(|error| self.wrong(rule, error));
        self.content.rules.iter().map(parse).collect()
    }

    /// Returns the most groups created by rules.
    pub fn rule_groups_max(&self) -> usize {
        self.content.rule_groups_max.unwrap_or(umemcg_fuse::RULE_GROUPS_MAX)
    }

    /// Returns the volumes, in the order of the file.
    pub fn volumes(&self) -> impl Iterator<Item = VolumeEntry<'_>> {
        let mut volumes: Vec<_> = self.content.volumes.iter().collect();
        volumes.sort_by_key(|(name, _)| name.span().start);
        volumes.into_iter().map(|(name, content)| VolumeEntry { config: self, name, content })
    }

    /// Creates the groups, and sets each limit not yet `in_force`, in the order of the file.
    /// Missing ancestors are created. New limits are noted in `in_force`. Returns a failure with
    /// its line for each refused group or limit.
    pub fn set_limits(&self, tree: &ControlTree, in_force: &mut LimitTexts) -> Vec<Failure> {
        let mut failures = Vec::new();
        let mut groups: Vec<_> = self.content.groups.iter().collect();
        groups.sort_by_key(|(path, _)| path.span().start);
        for (path, files) in groups {
            let group = match self.make_group(tree, path) {
                Ok(group) => group,
                Err(failure) => {
                    failures.push(failure);
                    continue;
                }
            };
            let mut files: Vec<_> = files.iter().collect();
            files.sort_by_key(|(name, _)| name.span().start);
            for (name, value) in files {
                if let Err(failure) = self.set(tree, path, group, (name, value), in_force) {
                    failures.push(failure);
                }
            }
        }
        failures
    }

    /// Returns the limits in the file, by group and control file.
    pub fn limit_names(&self) -> BTreeSet<LimitName> {
        let of_group = |(path, files): (&Spanned<String>, &BTreeMap<Spanned<String>, _>)| {
            let path = path.get_ref().clone();
            files.keys().map(|name| (path.clone(), name.get_ref().clone())).collect::<Vec<_>>()
        };
        self.content.groups.iter().flat_map(of_group).collect()
    }

    fn make_group(&self, tree: &ControlTree, path: &Spanned<String>) -> Result<NodeId, Failure> {
        let text = path.get_ref();
        if !text.starts_with('/') {
            let what = format!("`{text}` is no group; write its path from the root, such as `/pods/a`");
            return Err(self.wrong(path, what));
        }
        make_group(tree, text)
            .map_err(|error| self.wrong(path, format!("cannot make the group `{text}`: {error}")))
    }

    /// Writes one control file of a group, unless this value is in force already.
    fn set(
        &self,
        tree: &ControlTree,
        path: &Spanned<String>,
        group: NodeId,
        (name, value): (&Spanned<String>, &Spanned<Value>),
        in_force: &mut LimitTexts,
    ) -> Result<(), Failure> {
        let (path, file) = (path.get_ref(), name.get_ref());
        let text = match value.get_ref() {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            _ => return Err(self.wrong(name, format!("{path}: `{file}` takes a number or a text"))),
        };
        let limit = (path.clone(), file.clone());
        if in_force.get(&limit) == Some(&text) {
            return Ok(());
        }
        let Some(node) = limit_file(tree, group, file) else {
            return Err(self.wrong(
                name,
                format!("{path}: there is no limit `{file}`; names are those of the control files"),
            ));
        };
        write_limit(tree, node, &text)
            .map_err(|error| self.wrong(name, format!("{path}: cannot set `{file}` to `{text}`: {error}")))?;
        in_force.insert(limit, text);
        Ok(())
    }
}

/// Settings fixed for the life of a mount, by name.
pub type FixedSettings = [(&'static str, String); 9];

impl VolumeEntry<'_> {
    /// Returns its name.
    pub fn name(&self) -> &str {
        self.name.get_ref()
    }

    /// Returns a failure with the line of this volume, for a mistake in the file.
    pub fn wrong(&self, what: impl fmt::Display) -> Failure {
        Failure::Usage(self.message(what))
    }

    /// Returns a message with the line of this volume.
    pub fn message(&self, what: impl fmt::Display) -> String {
        self.config.message(self.name, format_args!("volume `{}`: {what}", self.name()))
    }

    /// Returns the source of its data. A relative path is relative to the directory of the file.
    ///
    /// # Errors
    /// [`Failure`] with the line.
    pub fn data(&self) -> Result<VolumeSource, Failure> {
        let size_bytes = self.content.size.as_ref().map(|size| {
            let bytes = umemcg_base::parse_size(size.get_ref().as_bytes()).ok().filter(|&bytes| bytes > 0);
            bytes.ok_or_else(|| {
                self.config.wrong(size, format!("`{}` is no size of a volume", size.get_ref()))
            })
        });
        let size_bytes = size_bytes.transpose()?;
        let above = self.config.path.parent().unwrap_or(Path::new(""));
        let VolumeContent { endpoint, region, anonymous, freshness, .. } = &self.content;
        let options = StoreOptions {
            endpoint: endpoint.clone(),
            region: region.clone(),
            anonymous: *anonymous,
            freshness: freshness.clone(),
            staging: self.content.staging.as_ref().map(|dir| above.join(dir)),
            staging_size: self.content.staging_size.clone(),
            attributes: self.content.attributes,
            writes: self.content.writes,
        };
        if let Some(url) = &self.content.store {
            if self.content.dir.is_some() || self.content.tmpfs || size_bytes.is_some() {
                return Err(self.wrong("`store` goes with neither `dir`, `tmpfs` nor `size`"));
            }
            let url = url.clone();
            return Ok(VolumeSource::Store(Box::new(StoreSource { url, options, state: None })));
        }
        if !options.is_empty() {
            return Err(self.wrong(
                "`endpoint`, `region`, `anonymous`, `freshness`, `attributes`, `staging` and `writes` go with `store`",
            ));
        }
        match (&self.content.dir, self.content.tmpfs) {
            (Some(_), false) if size_bytes.is_some() => Err(self.wrong("`size` is for tmpfs volumes")),
            (Some(dir), false) => Ok(VolumeSource::Dir { path: above.join(dir) }),
            (None, true) => Ok(VolumeSource::Tmpfs { size_bytes, used_bytes: 0 }),
            _ => Err(self.wrong("say either `dir = \"…\"`, `store = \"s3://…\"` or `tmpfs = true`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::sync::Arc;
    use umemcg::{Engine, EngineConfig, Group};
    use umemcg_fuse::ProcessClassifier;

    fn parsed(text: &str) -> Result<Config, Failure> {
        Config::parse(Path::new("test.toml"), text.to_owned())
    }

    type Applied = (Arc<Engine>, Vec<(String, VolumeSource)>);

    /// Applies a file as a mount does, before anything is mounted.
    fn applied(text: &str) -> Result<Applied, Failure> {
        let config = parsed(text)?;
        config.pool()?;
        let engine = Engine::new(EngineConfig::default()).unwrap();
        let classifier = Arc::new(ProcessClassifier::new(Arc::clone(&engine), config.rules()?).unwrap());
        let refused =
            config.set_limits(&ControlTree::new(Arc::clone(&engine), classifier), &mut LimitTexts::new());
        refused.into_iter().next().map_or(Ok(()), Err)?;
        config.log()?;
        let volumes = config.volumes().map(|volume| Ok((volume.name().to_owned(), volume.data()?)));
        Ok((engine, volumes.collect::<Result<_, Failure>>()?))
    }

    fn group(engine: &Engine, path: &str) -> Arc<Group> {
        path.split('/').fold(Arc::clone(engine.root()), |at, name| at.child(OsStr::new(name)).unwrap())
    }

    #[test]
    fn groups_limits_and_volumes_are_as_the_file_says() {
        let text = r#"
            pool = "64M"
            recursive_protection = false
            rules = ["uid:1000=/users/{0}"]
            [groups."/a/b"]
            "memory.max" = "8M"
            [groups."/a"]
            "memory.limit_in_bytes" = 16777216
            [volumes.z]
            dir = "there"
            [volumes.a]
            tmpfs = true
            size = "2M"
        "#;
        assert_eq!(parsed(text).unwrap().recursive_protection(), Some(false));
        assert_eq!(parsed("").unwrap().recursive_protection(), None);
        assert_eq!(parsed("control_style = \"v2\"").unwrap().control_style(), Some(ControlStyle::V2));
        assert_eq!(parsed("page_cache = \"kernel\"").unwrap().page_cache(), Some(PageCache::Kernel));
        assert!(parsed("exclusive = true").unwrap().exclusive() && !parsed("").unwrap().exclusive());
        assert!(!parsed("watch = false").unwrap().watch() && parsed("").unwrap().watch());
        let (engine, volumes) = applied(text).unwrap();
        assert_eq!((group(&engine, "a").max_bytes(), group(&engine, "a/b").max_bytes()), (16 << 20, 8 << 20));
        let expected = [
            ("z".to_owned(), VolumeSource::Dir { path: "there".into() }),
            ("a".to_owned(), VolumeSource::Tmpfs { size_bytes: Some(2 << 20), used_bytes: 0 }),
        ];
        assert_eq!(volumes, expected, "in the order of the file");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, line, what) in [
            ("\nfoo = 1", 2, "unknown field `foo`"),
            ("pool = \"lots\"", 1, "no size"),
            ("\n\nrules = [\"uid:1=/a\",\n\"nonsense\"]", 4, "cgroup:"),
            ("recursive_protection = \"no\"", 1, "expected a boolean"),
            ("control_style = \"v3\"", 1, "unknown variant `v3`"),
            ("\nlog = \"umemcg_fuse=loud\"", 2, "is no filter"),
            ("page_cache = \"none\"", 1, "unknown variant `none`"),
            ("[groups.a]", 1, "`a` is no group"),
            ("[groups.\"/a/../b\"]", 1, "invalid"),
            ("[groups.\"/memory.stat\"]", 1, "taken"),
            ("[groups.\"/a\"]\n\"memory.maxx\" = 1", 2, "no limit `memory.maxx`"),
            ("[groups.\"/a\"]\n\"memory.max\" = \"lots\"", 2, "`lots`: invalid value"),
            ("[groups.\"/a\"]\n\"memory.max\" = [1]", 2, "a number or a text"),
            ("[groups.\"/a\"]\n\n\"cgroup.procs\" = 1", 3, "no limit `cgroup.procs`"),
            ("[groups.\"/a\"]\n\"memory.stat\" = 1", 2, "invalid value"),
            ("[groups.\"/\"]\n\"memory.limit_in_bytes\" = 1", 2, "invalid value"),
            ("[volumes.a]", 1, "say either"),
            ("[volumes.a]\ntmpfs = true\ndir = \"x\"", 1, "say either"),
            ("[volumes.a]\ndir = \"x\"\nsize = \"1M\"", 1, "for tmpfs"),
            ("[volumes.a]\ntmpfs = true\nsize = \"much\"", 3, "`much` is no size"),
            ("[volumes.a]\ntmpfs = true\nsise = \"1M\"", 3, "unknown field `sise`"),
            ("[volumes.a]\ntmpfs = true\n[volumes.a]\ntmpfs = true", 3, "duplicate"),
        ] {
            let error = applied(text).map(drop).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
            let place = [format!("test.toml:{line}:"), format!("line {line},")];
            assert!(place.iter().any(|place| error.contains(place)), "{text}: line {line}? {error}");
        }
    }

    #[test]
    fn a_limit_that_is_in_force_is_not_written_again() {
        let engine = Engine::new(EngineConfig::default()).unwrap();
        let classifier = Arc::new(ProcessClassifier::new(Arc::clone(&engine), Vec::new()).unwrap());
        let tree = ControlTree::new(Arc::clone(&engine), classifier);
        let mut in_force = LimitTexts::new();
        let mut set = |bytes: u64| {
            let config = parsed(&format!("[groups.\"/a\"]\n\"memory.max\" = {bytes}")).unwrap();
            assert!(config.set_limits(&tree, &mut in_force).is_empty());
        };
        set(8 << 20);
        let a = group(&engine, "a");
        a.store_max(1 << 20);
        set(8 << 20);
        assert_eq!(a.max_bytes(), 1 << 20, "what was set by hand stays");
        set(16 << 20);
        assert_eq!(a.max_bytes(), 16 << 20);
    }

    #[test]
    fn the_example_is_accepted() {
        let text = include_str!("../../../examples/umemcg.toml");
        let (engine, volumes) = applied(text).unwrap();
        assert!(engine.root().nr_children() >= 2 && volumes.len() >= 2);
    }
}
