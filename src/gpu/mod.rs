//! The GPU engine: runs recordings as WGSL compute shaders on Vulkan, Metal or DX12. The only user of `wgpu`.
//!
//! Every module, pipeline, buffer and submission is made inside an error scope, and the device is checked after
//! every submission, so that a lost device, a full memory and a refused limit are errors of the call that met
//! them. Nothing here panics on what a driver does.

mod device;
mod pipelines;
mod profile;
mod session;
mod transfer;
mod verify;

use std::sync::Arc;
use std::time::Duration;

/// The `wgpu` that this crate is built with, for applications that bring their own device.
pub use wgpu;

pub use device::{AdapterKind, AdapterSummary, Selector, adapters};
pub use profile::KernelTime;
pub use verify::{Tolerance, Verify};

use crate::error::{Error, Result};
use crate::record::{Engine, Layout, Session};
use device::Device;
use session::GpuSession;

/// How a device is driven. None of it changes a result.
#[derive(Clone, Debug)]
struct Options {
    dispatches_per_submit: usize,
    submissions_in_flight: usize,
    timeout: Duration,
    checked_shaders: bool,
    profiling: bool,
    verify: Verify,
    tolerance: Tolerance,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            dispatches_per_submit: 64,
            submissions_in_flight: 3,
            timeout: Duration::from_secs(300),
            checked_shaders: false,
            profiling: false,
            verify: Verify::Off,
            tolerance: Tolerance::default(),
        }
    }
}

/// A device with its compiled pipelines. Clones share both.
///
/// Sessions are independent: each owns the buffers of its layout. They may live on different threads.
#[derive(Clone, Debug)]
pub struct GpuEngine {
    device: Arc<Device>,
    options: Options,
}

impl GpuEngine {
    /// Opens an adapter with every limit it offers.
    ///
    /// # Errors
    /// [`Error::NoAdapter`] if nothing fits the selector; it says what there is and how to get a driver.
    /// [`Error::Device`] if the driver refuses to make a device.
    pub fn open(selector: &Selector) -> Result<Self> {
        Ok(Self::on(Device::open(selector, false)?))
    }

    /// Opens an adapter with the limits that every WebGPU device has (128 MiB per binding, 8 storage buffers,
    /// 256 invocations and 16 KiB of memory per workgroup): what runs here runs everywhere.
    ///
    /// # Errors
    /// As [`GpuEngine::open`].
    pub fn open_portable(selector: &Selector) -> Result<Self> {
        Ok(Self::on(Device::open(selector, true)?))
    }

    /// Runs on a device of the host application, sharing its queue. Its limits and features are taken as they are.
    ///
    /// The engine sets the device's device-lost callback, because a lost device is seen in no other way: it
    /// replaces one that was set before. [`GpuEngine::lost`] tells the host what the callback was told. The
    /// handler of uncaptured errors is left alone.
    pub fn from_device(device: wgpu::Device, queue: wgpu::Queue) -> Self {
        Self::on(Device::adopt(device, queue))
    }

    fn on(device: Device) -> Self {
        GpuEngine { device: Arc::new(device), options: Options::default() }
    }

    /// Measures the time of every dispatch on the device; collect it with [`GpuEngine::take_profile`]. Each
    /// dispatch becomes a pass of its own and every submission is waited for, so the whole runs slower.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the device has no timestamp queries.
    pub fn with_profiling(mut self) -> Result<Self> {
        if !self.device.raw.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            return Err(Error::invalid("profiling", true, "this device has no timestamp queries"));
        }
        self.options.profiling = true;
        Ok(self)
    }

    /// Compares dispatches with their f64 twins as they run.
    pub fn with_verify(mut self, verify: Verify, tolerance: Tolerance) -> Self {
        self.options.verify = verify;
        self.options.tolerance = tolerance;
        self
    }

    /// Most dispatches in one submission, at least 1 (64 at first). Operating systems stop a submission that takes
    /// seconds; fewer dispatches keep a slow device below that.
    pub fn with_dispatches_per_submit(mut self, n: usize) -> Self {
        // A set of timestamps holds 4096 queries, two per dispatch.
        self.options.dispatches_per_submit = n.clamp(1, 2048);
        self
    }

    /// How long to wait for the device before giving up with [`Error::Device`] (300 s at first: a hung GPU is
    /// stopped by its driver long before, and software adapters are slow).
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = timeout;
        self
    }

    /// Whether the driver adds bounds checks to shaders (not at first). For looking into a shader that may be at
    /// fault.
    pub fn with_checked_shaders(mut self, checked: bool) -> Self {
        self.options.checked_shaders = checked;
        self
    }

    /// Takes the times measured since the last call, in order of execution. Empty without
    /// [`GpuEngine::with_profiling`].
    pub fn take_profile(&self) -> Vec<KernelTime> {
        self.device.take_profile()
    }

    /// What the driver said when the device was lost, if it was.
    pub fn lost(&self) -> Option<String> {
        self.device.lost()
    }

    /// The device, for resources of the host application that live beside the engine's.
    pub fn device(&self) -> &wgpu::Device {
        &self.device.raw
    }

    /// The queue that the engine submits to.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.device.queue
    }
}

impl Engine for GpuEngine {
    fn describe(&self) -> String {
        self.device.name.clone()
    }

    fn max_buffer_bytes(&self) -> u64 {
        self.device.max_buffer_bytes()
    }

    fn max_binding_bytes(&self) -> u64 {
        self.device.max_binding_bytes()
    }

    fn open(&self, layout: &Layout) -> Result<Box<dyn Session>> {
        Ok(Box::new(GpuSession::new(self.device.clone(), self.options.clone(), layout)?))
    }
}
