//! Loading ahead of the device: decode and augment on worker threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use image::RgbImage;
use rayon::prelude::*;

use super::augment::Transform;
use super::{Source, decode};
use crate::error::{Error, Result};

/// A physical batch to load: `None` is padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Logical step; part of the augmentation's key.
    pub step: u64,
    /// Whether the logical batch ends here.
    pub last: bool,
    /// Examples by index.
    pub indices: Vec<Option<u64>>,
}

/// A loaded physical batch.
#[derive(Clone, Debug)]
pub struct Batch {
    /// What was asked for.
    pub job: Job,
    /// (B, 3, S, S), normalised; zeros for padding and for what could not be decoded.
    pub images: Vec<f32>,
    /// (B): 1, or 0 for padding and for what could not be decoded.
    pub weights: Vec<f32>,
    /// Classes, where the source has them.
    pub classes: Vec<Option<u32>>,
}

/// Files that could not be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Distinct examples.
    pub failed: u64,
    /// The first ones, with the reason.
    pub named: Vec<String>,
}

/// Decoded images up to this many bytes are kept.
const CACHE_BYTES: usize = 256 << 20;
/// Failed files that are named.
const NAMED: usize = 20;

/// A decoded example.
#[derive(Clone)]
struct Decoded {
    image: Arc<RgbImage>,
    class: Option<u32>,
}

struct Shared {
    source: Arc<dyn Source>,
    transform: Transform,
    side: usize,
    /// Decoded examples, and the bytes of their images.
    cache: Mutex<(HashMap<u64, Decoded>, usize)>,
    failures: Mutex<HashMap<u64, String>>,
    /// Set after the last job: a loader that ends without it has failed.
    finished: AtomicBool,
}

impl Shared {
    /// The decoded example; one that is kept is not read again.
    fn example(&self, index: u64) -> std::result::Result<Decoded, String> {
        if let Some(kept) = lock(&self.cache).0.get(&index) {
            return Ok(kept.clone());
        }
        let record = self.source.record(index).map_err(|e| e.to_string())?;
        let image = decode::decode(&record.image).map_err(|e| format!("{}: {e}", record.name))?;
        let decoded = Decoded { image: Arc::new(image), class: record.class };
        let mut cache = lock(&self.cache);
        let bytes = decoded.image.as_raw().len();
        if cache.1 + bytes <= CACHE_BYTES {
            cache.1 += bytes;
            cache.0.insert(index, decoded.clone());
        }
        Ok(decoded)
    }

    fn load(&self, job: Job) -> Batch {
        let pixels = 3 * self.side * self.side;
        let mut images = vec![0.0; job.indices.len() * pixels];
        let (weights, classes) = images
            .par_chunks_mut(pixels)
            .zip(&job.indices)
            .map(|(out, index)| {
                let Some(index) = *index else { return (0.0, None) };
                match self.example(index) {
                    Ok(Decoded { image, class }) => {
                        self.transform.apply(&image, self.side, job.step, index, out);
                        (1.0, class)
                    }
                    Err(what) => {
                        lock(&self.failures).insert(index, what);
                        (0.0, None)
                    }
                }
            })
            .unzip();
        Batch { job, images, weights, classes }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A loader that works ahead by a few physical batches. Results do not depend on the number of threads.
pub struct Prefetch {
    shared: Arc<Shared>,
    batches: Option<Receiver<Batch>>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetch {
    /// Starts loading `jobs`, in order, as images of `side` pixels, on `threads` threads.
    ///
    /// # Errors
    /// [`Error::Device`] if no thread can be started.
    pub fn new(
        source: Arc<dyn Source>,
        transform: Transform,
        side: usize,
        threads: usize,
        jobs: impl Iterator<Item = Job> + Send + 'static,
    ) -> Result<Self> {
        let fail = |e: &dyn std::fmt::Display| Error::Device(format!("starting loader threads: {e}"));
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .thread_name(|i| format!("loader {i}"))
            .build()
            .map_err(|e| fail(&e))?;
        let shared = Arc::new(Shared {
            source,
            transform,
            side,
            cache: Mutex::default(),
            failures: Mutex::default(),
            finished: AtomicBool::new(false),
        });
        let (send, batches): (SyncSender<Batch>, _) = sync_channel(3);
        let worker = shared.clone();
        let work = move || {
            for job in jobs {
                // The receiver is gone when the loader was dropped.
                if send.send(pool.install(|| worker.load(job))).is_err() {
                    return;
                }
            }
            worker.finished.store(true, Ordering::Release);
        };
        let thread = std::thread::Builder::new().name("loader".into()).spawn(work).map_err(|e| fail(&e))?;
        Ok(Prefetch { shared, batches: Some(batches), thread: Some(thread) })
    }

    /// The next batch; nothing after the last job.
    ///
    /// # Errors
    /// [`Error::Device`] if a loader thread failed before the last job: fewer examples must not pass for all of them.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        match self.batches.as_ref().map(Receiver::recv) {
            Some(Ok(batch)) => Ok(Some(batch)),
            _ if self.shared.finished.load(Ordering::Acquire) => Ok(None),
            _ => Err(Error::Device("a loader thread failed before the end of the data".into())),
        }
    }

    /// Files that could not be used so far.
    pub fn report(&self) -> Report {
        let failures = lock(&self.shared.failures);
        let mut indices: Vec<&u64> = failures.keys().collect();
        indices.sort();
        let named = indices.iter().take(NAMED).map(|i| failures[i].clone()).collect();
        Report { failed: failures.len() as u64, named }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Jobs that go once through a whole source, in order.
pub fn in_order(examples: u64, batch: usize, step: u64) -> impl Iterator<Item = Job> + Send {
    (0..examples.div_ceil(batch as u64)).map(move |i| {
        let start = i * batch as u64;
        let indices = (start..start + batch as u64).map(|k| (k < examples).then_some(k)).collect();
        Job { step, last: start + batch as u64 >= examples, indices }
    })
}
