//! Times of dispatches, taken on the device.

use std::time::Duration;

use wgpu::{BufferUsages, CommandEncoder};

use super::device::{Device, lock};
use super::transfer::{buffer, mapped};
use crate::error::Result;
use crate::kernel::Kernel;

/// The time that one dispatch took on the device.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// `module.entry`.
    pub kernel: String,
    /// Label of the dispatch: its node of the graph.
    pub label: String,
    /// Seconds; 0 if the driver gave no sensible time (some give zeros, or an end before the start).
    pub seconds: f64,
}

/// Timestamps of the dispatches of one submission.
pub(super) struct Timer {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    staging: wgpu::Buffer,
    /// Seconds per tick.
    period: f64,
}

impl Timer {
    pub fn new(device: &Device, dispatches: usize) -> Result<Self> {
        let count = 2 * dispatches as u32;
        let size = (count * wgpu::QUERY_SIZE) as u64;
        let queries = device.scoped("timestamps", || {
            device.raw.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count,
            })
        })?;
        let resolve = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        Ok(Timer {
            queries,
            resolved: buffer(device, "timestamps", size, resolve)?,
            staging: buffer(
                device,
                "timestamps download",
                size,
                BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            )?,
            period: device.queue.get_timestamp_period() as f64 * 1e-9,
        })
    }

    /// Where the pass of the submission's `i`-th dispatch writes its start and end.
    pub fn writes(&self, i: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(2 * i as u32),
            end_of_pass_write_index: Some(2 * i as u32 + 1),
        }
    }

    pub fn resolve(&self, encoder: &mut CommandEncoder, dispatches: usize) {
        if dispatches > 0 {
            let count = 2 * dispatches as u32;
            encoder.resolve_query_set(&self.queries, 0..count, &self.resolved, 0);
            encoder.copy_buffer_to_buffer(
                &self.resolved,
                0,
                &self.staging,
                0,
                (count * wgpu::QUERY_SIZE) as u64,
            );
        }
    }

    /// Waits for the submission and files its times.
    pub fn collect(
        &self,
        device: &Device,
        dispatches: &[(&'static Kernel, &str)],
        after: wgpu::SubmissionIndex,
        timeout: Duration,
    ) -> Result<()> {
        if dispatches.is_empty() {
            return Ok(());
        }
        let size = 2 * dispatches.len() as u64 * wgpu::QUERY_SIZE as u64;
        mapped(device, &self.staging, size, after, timeout, "timestamps", |view| {
            let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(view);
            let mut profile = lock(&device.profile);
            for ((kernel, label), pair) in dispatches.iter().zip(ticks.chunks_exact(2)) {
                let seconds = pair[1].saturating_sub(pair[0]) as f64 * self.period;
                profile.push(KernelTime { kernel: kernel.to_string(), label: (*label).to_owned(), seconds });
            }
        })
    }
}
