//! Reloads of a served mount's configuration. On SIGHUP or `umemcg reload` the file is read again,
//! checked as a whole, and only then applied.
//!
//! ```text
//!   read and parse -> check everything --a mistake--> nothing changes, the mistake is reported
//!                          |                          with its line
//!                          v
//!   log, rules, groups and limits, volumes: what differs from what is *in force* is changed
//! ```
//!
//! Each limit and volume is noted as in force once it has been set. So a limit set by hand stays
//! until its value in the file changes, and a volume added by hand is left alone. The next reload
//! retries settings refused as busy. Limits are checked on a separate tree of groups before any is
//! set.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use umemcg::{Engine, EngineConfig, Group};
use umemcg_base::LeafMutex;
use umemcg_control::{ControlTree, Membership, MembershipError, Style};
use umemcg_fuse::{Daemon, ProcessClassifier, Rule};

use crate::args::DaemonArguments;
use crate::client::unexpected;
use crate::config::{Config, FixedSettings, VolumeEntry};
use crate::endpoint::{Reloaded, Reply, Request, VolumeSource};
use crate::exit::Failure;
use crate::limits::{LimitName, LimitTexts, limit_text, reset_limit};
use crate::log;
use crate::pool::MIN_POOL_BYTES;
use crate::volumes;

/// Runs `umemcg reload`.
///
/// # Errors
/// [`Failure::Failed`] if nothing was reloaded, or a setting of the file is not in force.
pub fn ask(which: &DaemonArguments) -> Result<(), Failure> {
    let reloaded = match volumes::last_reply(which, &Request::Reload)? {
        Reply::Reloaded(reloaded) => reloaded,
        other => return Err(unexpected(&other)),
    };
    volumes::print(which.json, &reloaded, || {
        let changed = reloaded.changed.iter().map(|line| format!("{line}\n")).collect::<String>();
        if changed.is_empty() { "nothing has changed\n".into() } else { changed }
    })?;
    match reloaded.left.as_slice() {
        [] => Ok(()),
        left => Err(Failure::Failed(format!(
            "some of the configuration is not in force:\n  {}",
            left.join("\n  ")
        ))),
    }
}

/// The configuration of a daemon, and its settings in force.
#[derive(Debug)]
pub struct LiveConfig {
    path: PathBuf,
    style: Style,
    tree: Arc<ControlTree>,
    processes: Arc<ProcessClassifier>,
    /// The rules of the command line; they precede the rules of the file.
    first_rules: Vec<Rule>,
    in_force: LeafMutex<InForce>,
}

/// The settings of a configuration that are in force.
#[derive(Debug, Clone)]
pub struct InForce {
    /// The settings fixed for the life of the mount.
    fixed: FixedSettings,
    log: Option<String>,
    /// The rules of the file.
    rules: Vec<Rule>,
    limits: LimitTexts,
    /// The volumes added by the file, with their serials: an operator may have replaced a volume by
    /// another of the same name.
    volumes: BTreeMap<String, (VolumeSource, u64)>,
}

impl InForce {
    /// Sets the limits of a configuration, before anything is served.
    ///
    /// # Errors
    /// The first failure, with its line.
    pub fn begin(config: &Config, tree: &ControlTree) -> Result<Self, Failure> {
        let mut limits = LimitTexts::new();
        config.set_limits(tree, &mut limits).into_iter().next().map_or(Ok(()), Err)?;
        let (fixed, log) = (config.fixed_settings(), config.log()?.map(str::to_owned));
        Ok(Self { fixed, log, rules: config.rules()?, limits, volumes: BTreeMap::new() })
    }

    /// Notes a volume added by the file.
    pub fn add_volume(&mut self, name: &str, source: VolumeSource, serial: u64) {
        self.volumes.insert(name.to_owned(), (source, serial));
    }
}

/// A checked configuration.
struct Checked<'a> {
    rules: Vec<Rule>,
    volumes: Vec<(VolumeEntry<'a>, VolumeSource)>,
    /// A tree without groups.
    fresh: ControlTree,
}

impl LiveConfig {
    /// Creates the configuration of a daemon. `tree` has its groups. `processes` has the rules of
    /// the command line, `first_rules`, and then the rules of the file.
    pub fn new(
        path: PathBuf,
        style: Style,
        tree: &Arc<ControlTree>,
        processes: &Arc<ProcessClassifier>,
        first_rules: Vec<Rule>,
        in_force: InForce,
    ) -> Self {
        let (tree, processes) = (Arc::clone(tree), Arc::clone(processes));
        Self { path, style, tree, processes, first_rules, in_force: LeafMutex::new(in_force) }
    }

    /// Reads the file again, and applies it. Removed volumes are made durable by the deadline.
    /// Volumes are left unchanged once `ends` returns true: the mount ends. Blocks. One call at a
    /// time.
    ///
    /// # Errors
    /// A message with the line if anything in the file is wrong; then nothing has changed.
    pub fn reload(
        &self,
        daemon: &Daemon,
        deadline: Instant,
        ends: &dyn Fn() -> bool,
    ) -> Result<Reloaded, String> {
        let config = Config::read(&self.path).map_err(|failure| failure.to_string())?;
        let checked = self.check(daemon, &config).map_err(|failure| failure.to_string())?;
        let mut in_force = self.in_force.lock().clone();
        let mut reloaded = Reloaded::default();
        for ((name, new), (_, old)) in config.fixed_settings().iter().zip(&in_force.fixed) {
            if new != old {
                reloaded.left.push(format!("`{name}` holds as long as the mount: end it, and mount again"));
            }
        }
        apply_log(&config, &mut in_force, &mut reloaded);
        self.apply_rules(checked.rules, &mut in_force, &mut reloaded);
        self.apply_limits(&config, &checked.fresh, &mut in_force, &mut reloaded);
        apply_volumes(daemon, &checked.volumes, (deadline, ends), &mut in_force, &mut reloaded);
        *self.in_force.lock() = in_force;
        Ok(reloaded)
    }

    /// Checks the configuration without changing anything.
    fn check<'a>(&self, daemon: &Daemon, config: &'a Config) -> Result<Checked<'a>, Failure> {
        config.pool()?;
        config.metrics()?;
        config.log()?;
        let rules = config.rules()?;
        let whole = daemon.volumes().whole().is_some();
        let volumes = config.volumes().map(|entry| {
            if whole {
                return Err(entry.wrong("this mount shows one directory; leave out DATA to show volumes"));
            }
            let source = entry.data()?;
            volumes::spec_of(&source).map_err(|error| entry.wrong(error))?;
            if let VolumeSource::Dir { path } = &source
                && let Err(error) = std::fs::read_dir(path)
            {
                return Err(entry.wrong(format!("cannot use the directory {}: {error}", path.display())));
            }
            Ok((entry, source))
        });
        let volumes = volumes.collect::<Result<Vec<_>, Failure>>()?;
        check_limits(config, self.style)?;
        Ok(Checked { rules, volumes, fresh: empty_tree(self.style)? })
    }

    fn apply_rules(&self, rules: Vec<Rule>, in_force: &mut InForce, reloaded: &mut Reloaded) {
        if rules == in_force.rules {
            return;
        }
        let all = self.first_rules.iter().chain(&rules).cloned().collect();
        match self.processes.set_rules(all) {
            Ok(()) => {
                reloaded.changed.push(format!("{} rules apply now", rules.len()));
                in_force.rules = rules;
            }
            Err(error) => reloaded.left.push(format!("the rules: {error}")),
        }
    }

    fn apply_limits(
        &self,
        config: &Config,
        fresh: &ControlTree,
        in_force: &mut InForce,
        reloaded: &mut Reloaded,
    ) {
        let before = in_force.limits.clone();
        let named = config.limit_names();
        let gone: Vec<LimitName> =
            in_force.limits.keys().filter(|&limit| !named.contains(limit)).cloned().collect();
        for limit in gone {
            let (path, file) = &limit;
            let others = in_force.limits.keys().filter(|other| other.0 == *path && **other != limit);
            let others: Vec<_> = others.map(|other| (other.clone(), limit_text(&self.tree, other))).collect();
            match reset_limit(&self.tree, fresh, &limit) {
                Ok(true) => reloaded.changed.push(format!("{path}: `{file}` is that of a new group")),
                // The group is gone, with all its limits.
                Ok(false) => {
                    in_force.limits.retain(|(of_group, _), _| of_group != path);
                    continue;
                }
                Err(error) => {
                    reloaded.left.push(format!("{path}: `{file}` stays as it is: {error}"));
                    continue;
                }
            }
            in_force.limits.remove(&limit);
            // One limit may have several files. Write again the files changed by this reset, and no
            // others: an operator may have set them.
            for (other, text) in others {
                if limit_text(&self.tree, &other) != text {
                    in_force.limits.remove(&other);
                }
            }
        }
        let refused = config.set_limits(&self.tree, &mut in_force.limits);
        reloaded.left.extend(refused.iter().map(ToString::to_string));
        for (limit, text) in &in_force.limits {
            if before.get(limit) != Some(text) {
                let (path, file) = limit;
                reloaded.changed.push(format!("{path}: `{file}` is {text} now"));
            }
        }
    }
}

/// Checks the limits of a configuration on a separate tree.
///
/// # Errors
/// The first failure, with its line.
pub fn check_limits(config: &Config, style: Style) -> Result<(), Failure> {
    config.set_limits(&empty_tree(style)?, &mut LimitTexts::new()).into_iter().next().map_or(Ok(()), Err)
}

/// Returns a tree without groups, on an engine of its own.
fn empty_tree(style: Style) -> Result<ControlTree, Failure> {
    let engine = Engine::new(EngineConfig::new(MIN_POOL_BYTES))
        .map_err(|error| Failure::Failed(format!("no memory to check the limits: {error}")))?;
    let no_processes: Arc<dyn Membership> = Arc::new(NoProcesses(Arc::clone(engine.root())));
    Ok(ControlTree::new(engine, no_processes).with_style(style))
}

fn apply_log(config: &Config, in_force: &mut InForce, reloaded: &mut Reloaded) {
    let Ok(new) = config.log() else { return };
    if new == in_force.log.as_deref() {
        return;
    }
    match log::set_filter(new) {
        Ok(true) => {
            reloaded.changed.push(format!("`log` is {} now", new.unwrap_or("the default")));
            in_force.log = new.map(str::to_owned);
        }
        Ok(false) => reloaded.left.push("`log`: UMEMCG_LOG or -v takes precedence".into()),
        Err(error) => reloaded.left.push(error),
    }
}

/// Removes, replaces and adds volumes, as the file says.
fn apply_volumes(
    daemon: &Daemon,
    wanted: &[(VolumeEntry<'_>, VolumeSource)],
    (deadline, ends): (Instant, &dyn Fn() -> bool),
    in_force: &mut InForce,
    reloaded: &mut Reloaded,
) {
    let served: BTreeMap<String, u64> =
        daemon.list_volumes().into_iter().map(|volume| (volume.name, volume.serial)).collect();
    in_force.volumes.retain(|name, (_, serial)| served.get(name) == Some(serial));
    // Removals come first: added volumes may need their directories.
    let leaving: Vec<(String, VolumeSource)> = in_force
        .volumes
        .iter()
        .filter(|&(name, (source, _))| {
            !wanted.iter().any(|(entry, new)| entry.name() == name && new == source)
        })
        .map(|(name, (source, _))| (name.clone(), source.clone()))
        .collect();
    for (name, old) in leaving.into_iter().take_while(|_| !ends()) {
        let new = wanted.iter().find(|(entry, _)| *entry.name() == name).map(|(_, source)| source);
        let is_memory = |source: &VolumeSource| matches!(source, VolumeSource::Tmpfs { .. });
        if is_memory(&old) && new.is_some() {
            reloaded.left.push(format!(
                "volume `{name}` stays as it is, or its data would be lost: `umemcg volume remove {name}`, then reload"
            ));
            continue;
        }
        match daemon.remove_volume(&name, false, deadline, &mut |_| {}) {
            Ok(_) => {
                in_force.volumes.remove(&name);
                reloaded.changed.push(format!("volume `{name}` removed"));
            }
            Err(error) => reloaded.left.push(format!(
                "volume `{name}` stays as it was: {error}; `umemcg volume remove --force {name}` removes it"
            )),
        }
    }
    let served: BTreeSet<String> = daemon.list_volumes().into_iter().map(|volume| volume.name).collect();
    for (entry, source) in wanted.iter().take_while(|_| !ends()) {
        match (in_force.volumes.contains_key(entry.name()), served.contains(entry.name())) {
            // It matches the file, or was just reported as kept.
            (true, _) => {}
            (false, true) => reloaded.left.push(
                entry.wrong("a volume of this name was added with `umemcg volume add`; it stays").to_string(),
            ),
            (false, false) => match add(daemon, entry, source, Instant::now() + volumes::ADD_WAIT) {
                Ok(serial) => {
                    in_force.add_volume(entry.name(), source.clone(), serial);
                    reloaded.changed.push(format!("volume `{}` added", entry.name()));
                }
                Err(failure) => reloaded.left.push(failure.to_string()),
            },
        }
    }
    if ends() {
        reloaded.left.push("volumes may not be as the file says: the mount ends".into());
    }
}

/// Adds a volume of the file, and returns its serial. Waits for its directory until the deadline.
///
/// # Errors
/// [`Failure`] with the line.
fn add(
    daemon: &Daemon,
    entry: &VolumeEntry<'_>,
    source: &VolumeSource,
    deadline: Instant,
) -> Result<u64, Failure> {
    let spec = volumes::spec_of(source).map_err(|error| entry.wrong(error))?;
    let added = volumes::add_when_free(daemon, entry.name(), &spec, deadline);
    Ok(added.map_err(|error| entry.wrong(error))?.serial)
}

/// Membership for the tree used for checks: no processes.
#[derive(Debug)]
struct NoProcesses(Arc<Group>);

impl Membership for NoProcesses {
    fn processes(&self, _: &Arc<Group>) -> Result<Vec<u32>, MembershipError> {
        Ok(Vec::new())
    }
    fn threads(&self, _: &Arc<Group>) -> Result<Vec<u32>, MembershipError> {
        Ok(Vec::new())
    }
    fn attach_process(&self, _: &Arc<Group>, _: u32) -> Result<(), MembershipError> {
        Err(MembershipError::NoSuchProcess)
    }
    fn attach_thread(&self, _: &Arc<Group>, _: u32) -> Result<(), MembershipError> {
        Err(MembershipError::NoSuchProcess)
    }
    fn explicit_group(&self, _: u32) -> Result<Arc<Group>, MembershipError> {
        Ok(Arc::clone(&self.0))
    }
    fn kill(&self, _: &Arc<Group>, _: u32) -> Result<(), MembershipError> {
        Ok(())
    }
    fn is_populated(&self, _: &Arc<Group>) -> bool {
        false
    }
    fn close(&self, _: &Arc<Group>) -> Result<(), MembershipError> {
        Ok(())
    }
    fn reopen(&self, _: &Arc<Group>) {}
    fn id_from_viewer(&self, _: u32, _: u32) -> Result<u32, MembershipError> {
        Err(MembershipError::NoSuchProcess)
    }
    fn ids_for_viewer(&self, _: u32, ids: Vec<u32>) -> Vec<u32> {
        ids
    }
    fn process_of(&self, _: u32) -> Result<u32, MembershipError> {
        Err(MembershipError::NoSuchProcess)
    }
}
