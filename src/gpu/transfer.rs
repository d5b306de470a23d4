//! What goes to and from a device: uploads, downloads, and how many submissions are under way.

use std::sync::mpsc;
use std::time::Duration;

use wgpu::{BufferUsages, SubmissionIndex};

use super::device::Device;
use super::session::{BLOCK, GpuSession, bytes};
use crate::error::{Error, Result};
use crate::record::{Slice, check_transfer};

/// Uploads and downloads are cut into pieces of this many elements, so that staging memory stays small.
const PIECE: usize = 8 << 20;

/// Uploads wait in staging memory until something is submitted; after this many bytes or calls, that is done.
const PENDING_BYTES: usize = 64 << 20;
const PENDING_WRITES: usize = 64;

impl GpuSession {
    /// Notes a submission and waits for old ones, so that no more than a few are in flight.
    pub(super) fn sent(&mut self, index: SubmissionIndex) -> Result<()> {
        self.pending_bytes = 0;
        self.pending_writes = 0;
        self.in_flight.push_back(index);
        while self.in_flight.len() > self.options.submissions_in_flight {
            let oldest = self.in_flight.pop_front();
            self.device.poll(oldest, Some(self.options.timeout))?;
        }
        self.device.poll(None, None)
    }

    /// Submits uploads that wait for a submission.
    pub(super) fn flush(&mut self) -> Result<()> {
        let device = self.device.clone();
        let index = device.scoped("uploading", || device.queue.submit([]))?;
        self.sent(index)
    }

    pub(super) fn upload<T: bytemuck::Pod>(&mut self, to: Slice, data: &[T]) -> Result<()> {
        check_transfer(to, to.dtype, data.len())?;
        self.held(to)?;
        self.device.check()?;
        for (i, piece) in data.chunks(PIECE).enumerate() {
            let raw = &self.buffers[to.buffer].raw;
            let at = (to.offset + i * PIECE) as u64 * 4;
            let name = &self.buffers[to.buffer].info.name;
            self.device.scoped(format_args!("uploading to {name}"), || {
                self.device.queue.write_buffer(raw, at, bytemuck::cast_slice(piece));
            })?;
            self.pending_bytes += size_of_val(piece);
            self.pending_writes += 1;
            if self.pending_bytes >= PENDING_BYTES || self.pending_writes >= PENDING_WRITES {
                self.flush()?;
            }
        }
        Ok(())
    }

    pub(super) fn download<T: bytemuck::Pod>(&mut self, from: Slice) -> Result<Vec<T>> {
        self.held(from)?;
        self.device.check()?;
        let mut data = Vec::with_capacity(from.len);
        let mut at = 0;
        while at < from.len {
            let piece = from.part(at, (from.len - at).min(PIECE));
            self.download_piece(piece, &mut data)?;
            at += piece.len;
        }
        Ok(data)
    }

    fn download_piece<T: bytemuck::Pod>(&mut self, from: Slice, data: &mut Vec<T>) -> Result<()> {
        let device = self.device.clone();
        let (offset, size) = bytes(from);
        let staging = match self.staging.take().filter(|s| s.size() >= size) {
            Some(staging) => staging,
            None => {
                let size = size.next_power_of_two().max(BLOCK);
                buffer(&device, "download", size, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?
            }
        };
        let held = &self.buffers[from.buffer];
        let what = format!("downloading from {}", held.info.name);
        let index = device.scoped(&what, || {
            let mut encoder = device.raw.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&held.raw, offset, &staging, 0, size);
            device.queue.submit([encoder.finish()])
        })?;
        self.in_flight.clear();
        self.pending_bytes = 0;
        self.pending_writes = 0;
        mapped(&device, &staging, size, index, self.options.timeout, &what, |view| {
            data.extend(bytemuck::pod_collect_to_vec::<u8, T>(view));
        })?;
        self.staging = Some(staging);
        Ok(())
    }
}

/// A buffer, or the reason why there is none.
pub(super) fn buffer(device: &Device, label: &str, size: u64, usage: BufferUsages) -> Result<wgpu::Buffer> {
    device.scoped(format_args!("buffer {label} of {size} bytes"), || {
        device.raw.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: false,
        })
    })
}

/// Maps the start of a staging buffer once a submission is done, and shows it to `read`.
pub(super) fn mapped(
    device: &Device,
    staging: &wgpu::Buffer,
    size: u64,
    after: SubmissionIndex,
    timeout: Duration,
    what: &str,
    read: impl FnOnce(&[u8]),
) -> Result<()> {
    let (sender, receiver) = mpsc::channel();
    let range = staging.slice(..size);
    device.scoped(what, || {
        range.map_async(wgpu::MapMode::Read, move |result| {
            // The receiver is gone only if the wait below failed.
            let _ = sender.send(result);
        });
    })?;
    device.poll(Some(after), Some(timeout))?;
    // The submission is done, but a thread that polls the device for another session may have taken this answer out
    // of wgpu and not have delivered it yet.
    match receiver.recv_timeout(timeout) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(Error::Device(format!("{what}: {error}"))),
        Err(_) => return Err(Error::Device(format!("{what}: the device finished without an answer"))),
    }
    let view = range.get_mapped_range().map_err(|e| Error::Device(format!("{what}: {e}")))?;
    read(&view);
    drop(view);
    staging.unmap();
    Ok(())
}
