//! The rules for pods of Kubernetes, on the daemon's side: `umemcg csi` adds and removes them while
//! the mount is served.

use umemcg_fuse::Daemon;

use crate::endpoint::{Reply, Request};

/// Serves a request about pods.
pub fn serve(daemon: &Daemon, request: Request) -> Reply {
    let classifier = daemon.filesystem().classifier();
    match request {
        Request::PodAdd { uid, group } => match classifier.add_pod(&uid, &group) {
            Ok(()) => Reply::Done,
            Err(error) => {
                Reply::Failed { message: format!("cannot place the pod {uid} into {group}: {error}") }
            }
        },
        Request::PodRemove { uid } => {
            classifier.remove_pod(&uid);
            Reply::Done
        }
        _ => Reply::Failed { message: "not a request about pods".into() },
    }
}
