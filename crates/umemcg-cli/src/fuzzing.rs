//! The parsers of the program, for the fuzz targets. Not part of the interface.

use std::path::Path;

use umemcg_control::ControlTree;
use umemcg_fuse::mountinfo;

use crate::config::Config;
use crate::exit::Failure;
use crate::limits::LimitTexts;
use crate::{pool, signals};

/// Applies a configuration as `umemcg mount --config` does before it mounts anything; returns the
/// names of its volumes.
///
/// # Errors
/// The message for the user.
pub fn apply_config(text: &str, tree: &ControlTree) -> Result<Vec<String>, String> {
    let apply = || -> Result<_, Failure> {
        let config = Config::parse(Path::new("fuzz.toml"), text.to_owned())?;
        config.pool()?;
        config.rules()?;
        config.log()?;
        config.set_limits(tree, &mut LimitTexts::new()).into_iter().next().map_or(Ok(()), Err)?;
        config.volumes().map(|volume| volume.data().map(|_| volume.name().to_owned())).collect()
    };
    apply().map_err(|failure| failure.to_string())
}

/// Parses a text as each of the program's `/proc` files; returns the success of each.
pub fn parse_proc_files(text: &str) -> Vec<bool> {
    let mounts: Vec<_> = mountinfo::parse(text.as_bytes()).collect();
    let usable = pool::least_of(text, text, &mounts, &|_| Some(text.to_owned()));
    let is_ignored = [1, 15, 64].into_iter().any(|signal| signals::is_ignored(signal, text));
    vec![usable.is_some(), is_ignored]
}
