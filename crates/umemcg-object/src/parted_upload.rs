//! A multipart upload in progress while its bytes arrive. It begins and completes like any upload
//! (`upload`). Tasks of the runtime send the parts, and each task reports its end.

use std::fmt;
use std::io;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use object_store::multipart::{MultipartStore, PartId};
use object_store::{Error, MultipartId, MultipartUpload};
use tokio::task::JoinHandle;
use umemcg_base::LeafMutex;
use umemcg_vfs::bucket::{
    BucketError, Expected, Metadata, ObjectInfo, ObjectSource, PartBytes, PartEnd, PartedUpload, UploadNote,
};

use crate::asked_bucket::AskedBucket;
use crate::metadata::marked;
use crate::request_extensions::{Tenant, uncarried};
use crate::upload::{Upload, payload_of};

/// See the module text.
pub(crate) struct StoreUpload {
    asked: Arc<AskedBucket>,
    key: String,
    /// With an upload mark.
    metadata: Metadata,
    expected: Expected,
    note: Arc<dyn UploadNote>,
    progress: Arc<LeafMutex<Progress>>,
}

/// The parts stored so far, with their numbers.
type SentParts = Vec<(usize, PartId)>;

/// How parts are passed to `object_store`.
enum Way {
    /// By upload id.
    Parts(Arc<dyn MultipartStore>, MultipartId),
    /// By its own upload type, which hides the id.
    Stream(Box<dyn MultipartUpload>),
}

struct Progress {
    /// `None` when the upload is over.
    way: Option<Way>,
    size: u64,
    nr_parts: usize,
    sent: SentParts,
    under_way: Vec<JoinHandle<()>>,
}

/// The object made of the parts.
#[derive(Debug)]
struct Sent {
    size: u64,
    note: Arc<dyn UploadNote>,
}

impl ObjectSource for Sent {
    fn size(&self) -> u64 {
        self.size
    }
    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn note_upload(&self, upload: Option<&str>) -> io::Result<()> {
        self.note.note(upload)
    }
}

impl fmt::Debug for StoreUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreUpload").field("key", &self.key).finish_non_exhaustive()
    }
}

impl StoreUpload {
    pub(crate) fn begin(
        asked: &Arc<AskedBucket>,
        key: &str,
        (metadata, expected): (&Metadata, &Expected),
        note: Arc<dyn UploadNote>,
    ) -> Result<Self, BucketError> {
        let metadata = marked(metadata);
        let nothing = Sent { size: 0, note: Arc::clone(&note) };
        let upload = Upload::new(asked, key, &nothing, &metadata, expected)?;
        let way = match &asked.store.parts {
            Some(store) => Way::Parts(Arc::clone(store), upload.begin_noted(store)?),
            None => Way::Stream(upload.begin_stream()?),
        };
        let progress =
            Progress { way: Some(way), size: 0, nr_parts: 0, sent: Vec::new(), under_way: Vec::new() };
        let progress = Arc::new(LeafMutex::new(progress));
        Ok(Self {
            asked: Arc::clone(asked),
            key: key.to_owned(),
            metadata,
            expected: expected.clone(),
            note,
            progress,
        })
    }

    fn sent(&self, size: u64) -> Sent {
        Sent { size, note: Arc::clone(&self.note) }
    }

    /// Waits for the parts in progress, and takes the state needed to complete or abort the upload;
    /// `None` if it is over.
    fn take(&self, is_given_up: bool) -> Option<(Way, SentParts, u64)> {
        let under_way = std::mem::take(&mut self.progress.lock().under_way);
        for part in under_way {
            if is_given_up {
                part.abort();
            }
            // The part's end was reported, or is reported by the drop.
            let _ = self.asked.runtime.block_on(part);
        }
        let mut progress = self.progress.lock();
        let mut sent = std::mem::take(&mut progress.sent);
        sent.sort_unstable_by_key(|&(nr, _)| nr);
        Some((progress.way.take()?, sent, progress.size))
    }

    fn over(&self) -> BucketError {
        BucketError::Unavailable(format!("POST of {:?} in {}: the upload is over", self.key, self.asked.url))
    }
}

/// Sends a part, and records the outcome for the end of the upload.
async fn send(
    part: BoxFuture<'static, Result<Option<PartId>, Error>>,
    (asked, key): (Arc<AskedBucket>, String),
    (progress, nr): (Arc<LeafMutex<Progress>>, usize),
    end: PartEnd,
) {
    let sent = part.await;
    let result = sent.map(|part| progress.lock().sent.extend(part.map(|part| (nr, part))));
    end.tell(result.map_err(|error| asked.refused("PUT of a part", &key, &error)));
}

impl PartedUpload for StoreUpload {
    fn begin_part(&self, bytes: PartBytes, end: PartEnd) {
        let (asked, key) = (Arc::clone(&self.asked), self.key.clone());
        let path = match asked.path(&key) {
            Ok(path) => path,
            Err(error) => return end.tell(Err(error)),
        };
        let mut progress = self.progress.lock();
        let nr = progress.nr_parts;
        progress.nr_parts += 1;
        progress.size += bytes.len() as u64;
        progress.under_way.retain(|part| !part.is_finished());
        let payload = payload_of(bytes);
        let part = match &mut progress.way {
            None => None,
            Some(Way::Parts(store, upload)) => {
                let (store, upload) = (Arc::clone(store), upload.clone());
                Some(async move { store.put_part(&path, &upload, nr, payload).await.map(Some) }.boxed())
            }
            Some(Way::Stream(upload)) => {
                Some(upload.put_part(payload).map(|sent| sent.map(|()| None)).boxed())
            }
        };
        let Some(part) = part else {
            drop(progress);
            return end.tell(Err(self.over()));
        };
        let of_task = (Arc::clone(&self.progress), nr);
        let sent = uncarried(Tenant::current().extensions(), send(part, (asked, key), of_task, end));
        let task = self.asked.runtime.spawn(sent);
        progress.under_way.push(task);
    }

    fn complete(&self) -> Result<ObjectInfo, BucketError> {
        let (way, sent, size) = self.take(false).ok_or_else(|| self.over())?;
        let source = self.sent(size);
        let upload = Upload::new(&self.asked, &self.key, &source, &self.metadata, &self.expected)?;
        upload.ended(match way {
            Way::Parts(store, id) => {
                upload.end_parts(&store, &id, Ok(sent.into_iter().map(|(_, part)| part).collect()))
            }
            Way::Stream(stream) => upload.end_stream(stream, Ok(())),
        })
    }

    fn abort(&self) -> Result<(), BucketError> {
        let Some((way, ..)) = self.take(true) else { return Ok(()) };
        let nothing = self.sent(0);
        let upload = Upload::new(&self.asked, &self.key, &nothing, &self.metadata, &self.expected)?;
        match way {
            Way::Parts(store, id) => match upload.give_up_noted(&store, &id) {
                true => Ok(()),
                false => Err(BucketError::Unavailable(format!(
                    "DELETE of the upload {id} of {:?} in {}",
                    self.key, self.asked.url
                ))),
            },
            Way::Stream(mut stream) => {
                let aborted = uncarried(Tenant::current().extensions(), stream.abort());
                let aborted = self.asked.runtime.block_on(aborted);
                aborted.map_err(|error| self.asked.failed("DELETE of an upload", &self.key, &error))
            }
        }
    }
}

impl Drop for StoreUpload {
    fn drop(&mut self) {
        let (way, under_way) = {
            let mut progress = self.progress.lock();
            (progress.way.take(), std::mem::take(&mut progress.under_way))
        };
        let Some(way) = way else { return };
        let (asked, key, note) = (Arc::clone(&self.asked), self.key.clone(), Arc::clone(&self.note));
        drop(self.asked.runtime.spawn(async move {
            for part in under_way {
                part.abort();
                let _ = part.await;
            }
            let ended = match (way, asked.path(&key)) {
                (Way::Parts(store, upload), Ok(path)) => {
                    asked.abort(Tenant::default(), &store, &path, &upload).await
                }
                (Way::Stream(mut upload), _) => upload.abort().await,
                (Way::Parts(..), Err(_)) => Ok(()),
            };
            match ended {
                Ok(()) => _ = note.note(None),
                Err(error) => _ = asked.refused("DELETE of an upload", &key, &error),
            }
        }));
    }
}
