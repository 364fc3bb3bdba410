//! `umemcg mount`: creates an engine, a daemon and its control files, and runs until the mount has
//! ended.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tracing::Level;
use umemcg::{Engine, EngineConfig};
use umemcg_control::{ControlTree, Style};
use umemcg_fuse::mountinfo::mount_at;
use umemcg_fuse::{
    Classifier, ControlFs, Daemon, DaemonConfig, DaemonError, GuardProgram, Lifetimes, MountError, MountFlag,
    MountOptions, ProcessClassifier, SessionConfig, Unmount,
};
use umemcg_metrics::{MetricsListener, MetricsServer};
use umemcg_vfs::{IoMode, VolumeError, VolumeKind, VolumeSpec, Volumes};

use crate::config::Config;
use crate::detachment;
use crate::endpoint::{self, Endpoint, Reloaded, Reply, Request, Serve};
use crate::exit::{Failure, LostFile};
use crate::lifecycle::{Event, Lifecycle, Served};
use crate::log::tell;
use crate::metrics;
use crate::mount_arguments::{IoModeArgument, MountArguments, PageCache};
use crate::pods;
use crate::pool::{PoolSize, usable_memory};
use crate::reload::{InForce, LiveConfig};
use crate::service_manager::{ServiceManager, watchdog_time};
use crate::start::Start;
use crate::stores::{self, StoreSource, is_store_url};
use crate::stuck_daemon::end_if_stuck_at;
use crate::table::human_bytes;
use crate::umount_helper;
use crate::volumes;
use crate::watchdog;

/// The most arenas of the C library's allocator. With two arenas, a walk over 500,000 files in a
/// group of 16 MiB costs the daemon a quarter less memory, and no more time.
const HEAP_ARENAS_MAX: u32 = 2;

/// Runs `umemcg mount DATA MNT`. Blocks until the mount has ended.
///
/// # Errors
/// [`Failure`].
pub fn mount(arguments: &MountArguments) -> Result<(), Failure> {
    if arguments.detached {
        detachment::leave_session();
    }
    // A killed daemon that cannot end keeps the mount point, the directory and the socket.
    end_if_stuck_at(&arguments.mountpoint);
    if let Some(control) = &arguments.control
        && same_place(control, &arguments.mountpoint)
    {
        return Err(Failure::Usage(
            "--control and the mount point are the same directory; choose two".into(),
        ));
    }
    let config = read_config(arguments)?;
    // Before the first thread is started.
    if !umemcg::limit_heap_arenas(HEAP_ARENAS_MAX) {
        tracing::debug!("cannot limit the arenas of the allocator");
    }
    let pool_bytes = pool_bytes(arguments, &config)?;
    // From here on a signal ends the mount cleanly, even while it is being created.
    let start = Start::new()?;
    raise_descriptor_limit();
    // Before anything is mounted: an address in use changes nothing.
    let listener = metrics::listen(arguments, &config)?;
    let control = control_of(arguments, &config, pool_bytes)?;
    let Some(daemon) = start_daemon(arguments, &config, &control, &start)? else {
        return Err(start.end_by_signal());
    };
    let daemon = Arc::new(daemon);
    let manager = Arc::new(ServiceManager::from_environment());
    let attended = live_config(arguments, &config, (&daemon, &start), control).and_then(|live| {
        live.map(|live| attend((arguments, &config), &daemon, (&start, &manager), live, listener)).transpose()
    });
    let (lifecycle, beside) = match attended {
        Ok(Some(attended)) => attended,
        refused => return Err(end_early(&daemon, (arguments, &start, &manager), refused.err())),
    };
    let ready = || announce(arguments, &daemon, pool_bytes);
    let result = lifecycle.run(&start.events, &start.sender, ready);
    drop(beside);
    result
}

/// The life of a served mount, with the sockets and the metrics that live as long.
type Attended = (Arc<Lifecycle>, (Option<Endpoint>, Option<MetricsServer>));

/// Starts the parts of a served mount beside its daemon.
fn attend(
    (arguments, config): (&MountArguments, &Config),
    daemon: &Arc<Daemon>,
    (start, manager): (&Start, &Arc<ServiceManager>),
    live: Option<LiveConfig>,
    listener: Option<MetricsListener>,
) -> Result<Attended, Failure> {
    let served = Arc::new(Mounted { daemon: Arc::clone(daemon), source: source(arguments).to_owned(), live });
    let point = daemon.mounted().point();
    let lifecycle = Lifecycle::new(served, point, arguments.flush_timeout, Arc::clone(manager));
    let mut endpoint = listen(daemon, &lifecycle);
    if let Some(path) = &arguments.socket {
        let serve: Arc<dyn Serve> = Arc::clone(&lifecycle) as _;
        let listened = endpoint.get_or_insert_default().listen_at(path, &serve);
        listened.map_err(|error| Failure::at("cannot listen on", path, &error))?;
    }
    let metrics = listener.map(|listener| metrics::serve(listener, daemon, config.metrics_depth()));
    let metrics = metrics.transpose()?;
    if let Some(within) = watchdog_time() {
        watchdog::start(daemon, manager, within)
            .map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
    }
    // The last step that may fail: from here on the daemon stays until its mount has ended.
    tell_when_ended(daemon, start.sender.clone())?;
    umount_helper::record(source(arguments), point);
    Ok((lifecycle, (endpoint, metrics)))
}

/// Reads the configuration, and sets the filter of the log.
fn read_config(arguments: &MountArguments) -> Result<Config, Failure> {
    let config = arguments.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
    if let (Some(_), Some(volume)) = (&arguments.data, config.volumes().next()) {
        return Err(volume.wrong("this mount shows one directory; leave out DATA to show volumes"));
    }
    crate::log::set_filter(config.log()?).map_err(Failure::Usage)?;
    Ok(config)
}

/// Ends a daemon whose start fails after it was mounted, or is interrupted by a signal: the mount
/// may have been used, so it is flushed.
fn end_early(
    daemon: &Daemon,
    (arguments, start, manager): (&MountArguments, &Start, &ServiceManager),
    refused: Option<Failure>,
) -> Failure {
    manager.stopping(arguments.flush_timeout);
    flush(daemon, arguments, refused).unwrap_or_else(|| start.end_by_signal())
}

/// Flushes a daemon before its end. Returns the failure for its command to report.
fn flush(daemon: &Daemon, arguments: &MountArguments, refused: Option<Failure>) -> Option<Failure> {
    let lost = daemon.shut_down(Instant::now() + arguments.flush_timeout);
    if lost.is_empty() {
        return refused;
    }
    refused.inspect(|refused| tell(Level::ERROR, refused));
    Some(Failure::Lost(lost.into_iter().map(LostFile::from).collect()))
}

/// The groups of a starting daemon.
struct Control {
    engine: Arc<Engine>,
    tree: Arc<ControlTree>,
    processes: Arc<ProcessClassifier>,
    style: Style,
    in_force: InForce,
}

/// Adds the volumes of the configuration, and returns it for reloads, if there is one. The outer
/// `None` means that a signal came first.
fn live_config(
    arguments: &MountArguments,
    config: &Config,
    (daemon, start): (&Arc<Daemon>, &Start),
    control: Control,
) -> Result<Option<Option<LiveConfig>>, Failure> {
    let Control { tree, processes, style, mut in_force, .. } = control;
    for volume in config.volumes() {
        let source = volume.data()?;
        let (name, deadline) = (volume.name().to_owned(), Instant::now() + arguments.flush_timeout);
        let spec = volumes::spec_of(&source).map_err(|error| volume.wrong(error))?;
        let daemon = Arc::clone(daemon);
        let add = move || volumes::add_when_free(&daemon, &name, &spec, deadline);
        let Some(added) = start.wait(&format!("the volume {}", volume.name()), add)? else { return Ok(None) };
        let added = added.map_err(|error| volumes::failure(&error, volume.message(&error)))?;
        in_force.add_volume(volume.name(), source, added.serial);
    }
    let Some(path) = &arguments.config else { return Ok(Some(None)) };
    let rules = arguments.rules.clone();
    Ok(Some(Some(LiveConfig::new(path.clone(), style, &tree, &processes, rules, in_force))))
}

/// Returns the size of the pool. The command line takes precedence over the file.
fn pool_bytes(arguments: &MountArguments, settings: &Config) -> Result<u64, Failure> {
    let usable = usable_memory()
        .map_err(|error| Failure::Failed(format!("cannot determine the available memory: {error}")))?;
    let pool = arguments.pool.or(settings.pool()?).unwrap_or(PoolSize::DEFAULT);
    pool.to_bytes(&usable).map_err(Failure::Usage)
}

/// Raises the soft limit of descriptors to the hard limit, which is often far higher. Open files,
/// watched threads and cached descriptors all count against it. Their bounds follow the limit, so a
/// failure to raise it is ignored.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn same_place(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Returns the engine's configuration.
fn engine_config(settings: &Config, pool_bytes: u64) -> EngineConfig {
    // The pool is shared by all groups, so background workers make room before a request has to.
    let config = EngineConfig::new(pool_bytes).pool_marks(true);
    match settings.recursive_protection() {
        Some(on) => config.recursive_protection(on),
        None => config,
    }
}

/// Creates the engine with the groups and rules of the configuration.
fn control_of(arguments: &MountArguments, settings: &Config, pool_bytes: u64) -> Result<Control, Failure> {
    let engine = Engine::new(engine_config(settings, pool_bytes)).map_err(|error| {
        Failure::Failed(format!("cannot create a pool of {}: {error}", human_bytes(pool_bytes)))
    })?;
    let mut rules = arguments.rules.clone();
    rules.extend(settings.rules()?);
    let processes = ProcessClassifier::new(Arc::clone(&engine), rules)
        .map_err(|error| Failure::Failed(format!("cannot keep track of processes: {error}")))?;
    let processes = Arc::new(processes.with_rule_groups_max(settings.rule_groups_max()));
    processes
        .tend_rule_groups()
        .map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
    let tree = ControlTree::new(Arc::clone(&engine), Arc::clone(&processes) as _);
    let style = arguments.control_style.or(settings.control_style()).map_or(Style::Both, Style::from);
    let tree = Arc::new(tree.with_style(style));
    let in_force = InForce::begin(settings, &tree)?;
    Ok(Control { engine, tree, processes, style, in_force })
}

/// Returns `None` when a signal came before the mount.
fn start_daemon(
    arguments: &MountArguments,
    settings: &Config,
    control: &Control,
    start: &Start,
) -> Result<Option<Daemon>, Failure> {
    let Control { engine, tree, processes, .. } = control;
    let mut config = match (&arguments.data, store_of(arguments)?) {
        (Some(url), Some(spec)) => DaemonConfig::of(spec, url, &arguments.mountpoint),
        (Some(data), None) => DaemonConfig::new(data, &arguments.mountpoint),
        (None, _) => DaemonConfig::many(&arguments.mountpoint),
    };
    if let Some(VolumeSpec::Directory(volume)) = &mut config.volume {
        volume.io_mode = io_mode(arguments);
    }
    // If the option is not given, the default for this user applies.
    config.mount.allow_other = arguments.allow_other.then_some(true);
    config.guard = Some(guard());
    let classifier: Arc<dyn Classifier> = Arc::clone(processes) as _;
    let (opened_in, volume, timeout) = (Arc::clone(engine), config.volume.clone(), arguments.flush_timeout);
    let open = move || when_free(|| Daemon::open(&opened_in, volume.as_ref()), timeout);
    let what = source(arguments).to_string_lossy().into_owned();
    let Some(opened) = start.wait(&what, open)? else { return Ok(None) };
    let volumes = opened.map_err(failure)?;
    // Asked after the open: a directory that hangs is waited for there.
    let is_read_only = config.volume.as_ref().is_some_and(VolumeSpec::is_read_only);
    let is_directory = matches!(config.volume, Some(VolumeSpec::Directory(_)));
    config.lifetimes = lifetimes(arguments, settings, is_directory && !is_read_only);
    config.mount.flags = flags_of(arguments, is_read_only);
    let mut daemon = Daemon::serve(engine, classifier, &config, volumes).map_err(failure)?;
    if let Some(point) = &arguments.control {
        let options = MountOptions {
            allow_other: config.mount.allow_other,
            ..MountOptions::new("umemcg-control", config.mount.source.clone())
        };
        let session = SessionConfig::default();
        let files = ControlFs::new(Arc::clone(tree), Arc::clone(processes) as _);
        // The mount of the data may have been used.
        let refused = daemon.mount_control(point, &options, files, session).map_err(failure).err();
        refused.and_then(|refused| flush(&daemon, arguments, Some(refused))).map_or(Ok(()), Err)?;
    }
    for mounted in [Some(daemon.mounted()), daemon.control_mounted()].into_iter().flatten() {
        endpoint::remove_left(mounted.device_number());
    }
    Ok(Some(daemon))
}

/// Returns the helper that ends the mount: the running program, even if its file has been replaced.
fn guard() -> GuardProgram {
    let (path, arguments) = ("/proc/self/exe".into(), vec!["__orphan-guard".into()]);
    GuardProgram { name: "umemcg".into(), path, arguments }
}

/// Returns how long the kernel may cache names and attributes, and whether it keeps pages.
fn lifetimes(arguments: &MountArguments, settings: &Config, is_writable_directory: bool) -> Lifetimes {
    let pages = keeps_pages(arguments, settings);
    if arguments.exclusive || settings.exclusive() {
        // On a read-only host, opening a file for writing must fail with an error, so opens are not
        // silent.
        let silent_opens = pages && is_writable_directory;
        return Lifetimes { pages, silent_opens, ..Lifetimes::exclusive() };
    }
    let (attr, entry) = (arguments.attr_timeout, arguments.attr_timeout);
    let watch = !arguments.no_watch && settings.watch();
    Lifetimes { attr, entry, pages, watch, ..Lifetimes::default() }
}

/// Returns the flags of the mount. Adds the read-only flag for a read-only volume.
fn flags_of(arguments: &MountArguments, is_read_only: bool) -> Vec<MountFlag> {
    let mut flags = arguments.mount_flags.clone();
    if is_read_only && !flags.contains(&MountFlag::ReadOnly) {
        flags.push(MountFlag::ReadOnly);
    }
    flags
}

/// Returns the mount's volume of objects, if it shows one.
fn store_of(arguments: &MountArguments) -> Result<Option<VolumeSpec>, Failure> {
    let url = arguments.data.as_ref().and_then(|data| data.to_str()).filter(|text| is_store_url(text));
    match url {
        Some(url) => {
            let (url, options) = (url.to_owned(), arguments.options.clone());
            let source = StoreSource { url, options, state: None };
            stores::spec_of(&source).map(Some).map_err(Failure::Failed)
        }
        None if arguments.options.is_empty() => Ok(None),
        None => Err(Failure::Usage(
            "--endpoint, --region, --anonymous, --freshness, --attributes, --staging and --writes go with the URL of a store".into(),
        )),
    }
}

/// Returns whether the kernel keeps file pages. The command line takes precedence over the file.
fn keeps_pages(arguments: &MountArguments, settings: &Config) -> bool {
    arguments.page_cache.or(settings.page_cache()) != Some(PageCache::Own)
}

/// Returns the source for the mount table.
fn source(arguments: &MountArguments) -> &OsStr {
    arguments.data.as_deref().map_or(OsStr::new("volumes"), Path::as_os_str)
}

/// Opens the volumes. Waits until the previous daemon of the directory has released it.
fn when_free(
    open: impl Fn() -> Result<Arc<Volumes>, DaemonError>,
    timeout: Duration,
) -> Result<Arc<Volumes>, DaemonError> {
    let until = Instant::now() + timeout;
    let mut is_told = false;
    loop {
        match open() {
            Err(DaemonError::Volume(error @ VolumeError::InUse { .. })) if Instant::now() < until => {
                if !std::mem::replace(&mut is_told, true) {
                    tell(Level::WARN, format_args!("{error}; waiting for up to {} s", timeout.as_secs()));
                }
                std::thread::sleep(volumes::DIRECTORY_LOOK);
            }
            opened => return opened,
        }
    }
}

/// Returns the I/O mode of `--io-mode`.
fn io_mode(arguments: &MountArguments) -> IoMode {
    match arguments.io_mode {
        IoModeArgument::Auto => IoMode::Auto,
        IoModeArgument::Dontcache => IoMode::DontCache,
        IoModeArgument::Direct => IoMode::Direct,
        IoModeArgument::Dropbehind => IoMode::DropBehind,
    }
}

fn failure(error: DaemonError) -> Failure {
    match &error {
        DaemonError::Mount(MountError::Busy { .. } | MountError::Stale(_))
        | DaemonError::Volume(VolumeError::InUse { .. }) => Failure::Busy(error.to_string()),
        _ => Failure::Failed(error.to_string()),
    }
}

/// Listens on the sockets. If that fails, the mount works, but `umemcg sync` and `umemcg umount`
/// cannot reach it.
fn listen(daemon: &Daemon, lifecycle: &Arc<Lifecycle>) -> Option<Endpoint> {
    let points = [Some(daemon.mounted()), daemon.control_mounted()];
    let mounts: Vec<_> =
        points.into_iter().flatten().filter_map(|mounted| mount_at(mounted.point()).ok().flatten()).collect();
    let serve: Arc<dyn Serve> = Arc::clone(lifecycle) as _;
    match Endpoint::listen(&mounts.iter().collect::<Vec<_>>(), &serve) {
        Ok(endpoint) => Some(endpoint),
        Err(error) => {
            tracing::warn!(%error, "no socket for `umemcg sync` and `umemcg umount`: they will not reach this mount");
            None
        }
    }
}

fn tell_when_ended(daemon: &Arc<Daemon>, events: mpsc::Sender<Event>) -> Result<(), Failure> {
    let daemon = Arc::clone(daemon);
    let waiting = std::thread::Builder::new().name("umemcg-ended".into()).spawn(move || {
        daemon.wait_ended(None);
        if let Some(error) = daemon.session().failure() {
            tell(Level::ERROR, format_args!("the connection to the kernel broke: {error}"));
        }
        // After a second signal no receiver is left.
        let _ = events.send(Event::Ended);
    });
    waiting.map(drop).map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))
}

/// Prints one line when the mount is ready. Programs starting the daemon wait for it.
fn announce(arguments: &MountArguments, daemon: &Daemon, pool_bytes: u64) {
    if arguments.detached {
        detachment::leave_stderr();
    }
    let point = daemon.mounted().point().display();
    let what = arguments.data.as_ref().map_or_else(|| "volumes".into(), |data| data.display().to_string());
    let verb = if arguments.data.is_some() { "is" } else { "are" };
    let mut line = format!("{what} {verb} served on {point} with a pool of {}", human_bytes(pool_bytes));
    if let Some(member) = daemon.volumes().whole()
        && let VolumeKind::Directory { io_mode, .. } = member.volume().kind()
    {
        line += &format!(", I/O mode {io_mode:?}");
    }
    // Read the mount table, not the mount: its store may hang.
    let mount = mount_at(daemon.mounted().point());
    if mount.is_ok_and(|mount| mount.is_some_and(|mount| mount.options.split(',').any(|part| part == "ro"))) {
        line += ", read only";
    }
    if let Some(control) = daemon.control_mounted() {
        line += &format!("; control files in {}", control.point().display());
    }
    let keys = if io::stderr().is_terminal() { "Ctrl-C or " } else { "" };
    line += &format!("; {keys}`umemcg umount {point}` ends it\n");
    let mut stdout = io::stdout();
    // The parent process may have closed the pipe. This does not end the mount.
    let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
}

/// The daemon of a foreground mount.
struct Mounted {
    daemon: Arc<Daemon>,
    source: OsString,
    live: Option<LiveConfig>,
}

impl Served for Mounted {
    fn flush(&self, deadline: Instant, progress: &mut dyn FnMut(u64)) -> Vec<LostFile> {
        self.daemon.flush(deadline, progress).into_iter().map(LostFile::from).collect()
    }

    fn unmount(&self, detach: bool) -> io::Result<()> {
        let point = self.daemon.mounted().point();
        // Before the unmount: afterwards umount(8) would not find the mount.
        umount_helper::forget(point);
        self.daemon
            .unmount(if detach { Unmount::Lazily } else { Unmount::IfIdle })
            .inspect_err(|_| umount_helper::record(&self.source, point))?;
        // A process with its working directory in the control files does not delay the end.
        self.daemon.control_mounted().map_or(Ok(()), |control| control.unmount(Unmount::Lazily))
    }

    fn waiting_threads(&self) -> Vec<u32> {
        self.daemon.session().waiting_threads()
    }

    fn volumes(&self, request: Request, deadline: Instant, progress: &mut dyn FnMut(u64)) -> Reply {
        volumes::serve(&self.daemon, request, deadline, progress)
    }

    fn reload(&self, deadline: Instant, ends: &dyn Fn() -> bool) -> Result<Reloaded, String> {
        match &self.live {
            Some(live) => live.reload(&self.daemon, deadline, ends),
            None => Err("there is no configuration: this mount was made without --config".into()),
        }
    }

    fn pods(&self, request: Request) -> Reply {
        pods::serve(&self.daemon, request)
    }

    fn metrics(&self, depth: Option<usize>) -> String {
        metrics::text(&self.daemon, depth)
    }

    fn shut_down(&self, deadline: Instant) -> Vec<LostFile> {
        self.daemon.shut_down(deadline).into_iter().map(LostFile::from).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protection_is_handed_down_unless_configured_otherwise() {
        let is_on = |file: &str| {
            let config = Config::parse(Path::new("umemcg.toml"), file.to_owned()).unwrap();
            engine_config(&config, 1 << 26).recursive_protection
        };
        assert!(is_on("") && is_on("recursive_protection = true"));
        assert!(!is_on("recursive_protection = false"));
    }
}
