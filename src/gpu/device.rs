//! Adapters and the device, with what can go wrong on it.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wgpu::{Backends, ErrorFilter, Features, Limits};

use super::pipelines::Pipelines;
use super::profile::KernelTime;
use crate::error::{Error, Result};

/// GL is left out: it lacks features that WebGPU guarantees, and would show one GPU twice.
const BACKENDS: Backends = Backends::VULKAN.union(Backends::METAL).union(Backends::DX12);

/// What an adapter is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares memory with the processor.
    Integrated,
    /// A GPU seen through a virtual machine.
    Virtual,
    /// The driver does not say.
    Other,
    /// Shaders run on the processor (lavapipe, WARP): used only when asked for by name.
    Software,
}

/// An adapter that could be opened.
#[derive(Clone, Debug)]
pub struct AdapterSummary {
    /// Name, as the driver gives it.
    pub name: String,
    /// `vulkan`, `metal` or `dx12`.
    pub backend: String,
    /// Driver with version; may be empty.
    pub driver: String,
    /// What it is made of.
    pub kind: AdapterKind,
    /// Largest buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// Largest range that one binding may cover, in bytes.
    pub max_binding_bytes: u64,
    /// Workgroup memory, in bytes.
    pub workgroup_bytes: u32,
    /// Most invocations of a workgroup.
    pub invocations: u32,
    /// Most storage buffers of a shader.
    pub storage_buffers: u32,
    /// Whether kernels can be timed on the device.
    pub timestamps: bool,
    /// Whether shaders may use 16-bit floats.
    pub f16: bool,
}

impl AdapterSummary {
    fn of(adapter: &wgpu::Adapter) -> Self {
        let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
        AdapterSummary {
            driver: [info.driver.as_str(), &info.driver_info].join(" ").trim().to_owned(),
            backend: info.backend.to_str().to_owned(),
            kind: match info.device_type {
                wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
                wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
                wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
                wgpu::DeviceType::Cpu => AdapterKind::Software,
                wgpu::DeviceType::Other => AdapterKind::Other,
            },
            name: info.name,
            max_buffer_bytes: limits.max_buffer_size,
            max_binding_bytes: limits.max_storage_buffer_binding_size,
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            invocations: limits.max_compute_invocations_per_workgroup,
            storage_buffers: limits.max_storage_buffers_per_shader_stage,
            timestamps: features.contains(Features::TIMESTAMP_QUERY),
            f16: features.contains(Features::SHADER_F16),
        }
    }

    /// Whether a name given by a user means this adapter: a part of its name, in any case. Lavapipe names its
    /// adapter after the rasteriser inside it, llvmpipe; both names are known to people.
    pub fn answers_to(&self, name: &str) -> bool {
        let own = self.name.to_lowercase();
        let name = name.trim().to_lowercase();
        !name.is_empty() && (own.contains(&name) || (name == "lavapipe" && own.contains("llvmpipe")))
    }
}

impl fmt::Display for AdapterSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.name, self.backend)?;
        if !self.driver.is_empty() {
            write!(f, ", {}", self.driver)?;
        }
        write!(f, ")")
    }
}

/// Which adapter to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The best real GPU: discrete before integrated. Never a software adapter.
    Gpu,
    /// The first whose name contains this, in any case; real GPUs first. A software adapter is opened in no other
    /// way.
    Named(String),
}

impl Selector {
    /// A [`Selector::Named`].
    pub fn named(name: impl Into<String>) -> Self {
        Selector::Named(name.into())
    }

    fn fits(&self, adapter: &AdapterSummary) -> bool {
        match self {
            Selector::Gpu => adapter.kind != AdapterKind::Software,
            Selector::Named(name) => adapter.answers_to(name),
        }
    }
}

fn found() -> Vec<(wgpu::Adapter, AdapterSummary)> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = BACKENDS;
    // Validation layers cost time and are installed on developers' machines only: results must not depend on them.
    descriptor.flags = wgpu::InstanceFlags::empty();
    let adapters = pollster::block_on(wgpu::Instance::new(descriptor).enumerate_adapters(BACKENDS));
    let mut found: Vec<_> =
        adapters.into_iter().map(|a| (AdapterSummary::of(&a), a)).map(|(s, a)| (a, s)).collect();
    found.sort_by_key(|(_, summary)| summary.kind);
    found
}

/// All adapters of this machine, real GPUs first.
pub fn adapters() -> Vec<AdapterSummary> {
    found().into_iter().map(|(_, summary)| summary).collect()
}

fn no_adapter(selector: &Selector, there: &[AdapterSummary]) -> Error {
    let wanted = match selector {
        Selector::Gpu => "there is no GPU with a Vulkan, Metal or DX12 driver".to_owned(),
        Selector::Named(name) => format!("none is named {name}"),
    };
    let list = there.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let there = if list.is_empty() { "none at all".to_owned() } else { list };
    Error::NoAdapter(format!(
        "{wanted} (found: {there}). Install the driver of your GPU (on Debian and Ubuntu `apt install \
         mesa-vulkan-drivers` has those of AMD and Intel, and the software adapter lavapipe), or use `--device cpu`"
    ))
}

/// A fault that arrived outside of any call; it stays, because what was computed since is not to be trusted.
#[derive(Debug)]
enum Fault {
    Lost(String),
    OutOfMemory(String),
    Other(String),
}

#[derive(Debug, Default)]
struct Health(Mutex<Option<Fault>>);

impl Health {
    fn latch(&self, fault: Fault) {
        let mut held = lock(&self.0);
        // The first fault explains the ones after it; but a lost device outranks any.
        if held.is_none() || (matches!(fault, Fault::Lost(_)) && !matches!(*held, Some(Fault::Lost(_)))) {
            *held = Some(fault);
        }
    }
}

/// A poisoned lock only means that another thread panicked while it held plain data.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device, its queue and everything that its sessions share.
#[derive(Debug)]
pub(super) struct Device {
    pub raw: wgpu::Device,
    pub queue: wgpu::Queue,
    pub name: String,
    pub limits: Limits,
    pub pipelines: Mutex<Pipelines>,
    pub profile: Mutex<Vec<KernelTime>>,
    health: Arc<Health>,
}

impl Device {
    pub fn open(selector: &Selector, portable: bool) -> Result<Self> {
        let found = found();
        let Some((adapter, summary)) = found.iter().find(|(_, s)| selector.fits(s)) else {
            let there: Vec<_> = found.into_iter().map(|(_, s)| s).collect();
            return Err(no_adapter(selector, &there));
        };
        let wanted = Features::TIMESTAMP_QUERY | Features::SHADER_F16;
        let request = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("veilgrad"),
            required_features: adapter.features() & wanted,
            required_limits: if portable { Limits::defaults() } else { adapter.limits() },
            ..Default::default()
        });
        let (raw, queue) = pollster::block_on(request)
            .map_err(|e| Error::Device(format!("{summary} makes no device: {e}")))?;
        let device = Self::new(raw, queue, summary.to_string());
        let health = device.health.clone();
        device.raw.on_uncaptured_error(Arc::new(move |error| {
            tracing::error!("wgpu: {error}");
            health.latch(match error {
                wgpu::Error::OutOfMemory { .. } => Fault::OutOfMemory("outside of any call".into()),
                other => Fault::Other(other.to_string()),
            });
        }));
        Ok(device)
    }

    pub fn adopt(raw: wgpu::Device, queue: wgpu::Queue) -> Self {
        let info = raw.adapter_info();
        let name = format!("{} ({}, the host application's device)", info.name, info.backend.to_str());
        Self::new(raw, queue, name)
    }

    fn new(raw: wgpu::Device, queue: wgpu::Queue, name: String) -> Self {
        let health = Arc::new(Health::default());
        let latch = health.clone();
        raw.set_device_lost_callback(move |reason, message| {
            latch.latch(Fault::Lost(format!("{message} ({reason:?})").trim().to_owned()));
        });
        let limits = raw.limits();
        let (pipelines, profile) = (Mutex::default(), Mutex::default());
        Device { raw, queue, name, limits, pipelines, profile, health }
    }

    pub fn lost(&self) -> Option<String> {
        match &*lock(&self.health.0) {
            Some(Fault::Lost(message)) => Some(message.clone()),
            _ => None,
        }
    }

    /// The latched fault, if any, as an error.
    pub fn check(&self) -> Result<()> {
        match &*lock(&self.health.0) {
            None => Ok(()),
            Some(Fault::Lost(message)) => Err(Error::DeviceLost(format!("{}: {message}", self.name))),
            Some(Fault::OutOfMemory(what)) => {
                Err(Error::OutOfMemory { device: self.name.clone(), what: what.clone() })
            }
            Some(Fault::Other(message)) => Err(Error::Device(message.clone())),
        }
    }

    /// Does something on the device and returns what it refused, or the device's latched fault.
    pub fn scoped<T>(&self, what: impl fmt::Display, work: impl FnOnce() -> T) -> Result<T> {
        self.check()?;
        let validation = self.raw.push_error_scope(ErrorFilter::Validation);
        let internal = self.raw.push_error_scope(ErrorFilter::Internal);
        let memory = self.raw.push_error_scope(ErrorFilter::OutOfMemory);
        let value = work();
        // Each is popped before any is waited for: scopes are a stack of this thread.
        let memory = memory.pop();
        let internal = internal.pop();
        let validation = validation.pop();
        if pollster::block_on(memory).is_some() {
            return Err(Error::OutOfMemory { device: self.name.clone(), what: what.to_string() });
        }
        if let Some(error) = pollster::block_on(internal).or(pollster::block_on(validation)) {
            return Err(Error::Device(format!("{what}: {error}")));
        }
        self.check()?;
        Ok(value)
    }

    /// Lets the device make progress; with a submission, waits for it.
    ///
    /// # Errors
    /// [`Error::Device`] after `timeout`, or the device's latched fault.
    pub fn poll(&self, until: Option<wgpu::SubmissionIndex>, wait: Option<Duration>) -> Result<()> {
        let poll = match wait {
            Some(timeout) => wgpu::PollType::Wait { submission_index: until, timeout: Some(timeout) },
            None => wgpu::PollType::Poll,
        };
        // wgpu panics if the driver loses the device while it waits.
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.raw.poll(poll))) {
            Ok(Ok(_)) => {}
            Ok(Err(wgpu::PollError::Timeout)) => {
                self.check()?;
                let waited = wait.unwrap_or_default().as_secs_f64();
                return Err(Error::Device(format!("{} did not finish within {waited} s", self.name)));
            }
            Ok(Err(error)) => {
                self.check()?;
                return Err(Error::Device(error.to_string()));
            }
            Err(_) => self.health.latch(Fault::Lost("the driver failed while waiting".into())),
        }
        self.check()
    }

    pub fn max_buffer_bytes(&self) -> u64 {
        self.limits.max_buffer_size
    }

    /// Shaders index with 32 bits, and Metal passes sizes as such: beyond 4 GiB they would wrap.
    pub fn max_binding_bytes(&self) -> u64 {
        self.limits.max_storage_buffer_binding_size.min(u32::MAX as u64 - 3)
    }

    pub fn take_profile(&self) -> Vec<KernelTime> {
        std::mem::take(&mut lock(&self.profile))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(name: &str, kind: AdapterKind) -> AdapterSummary {
        AdapterSummary {
            name: name.into(),
            backend: "vulkan".into(),
            driver: "Mesa 22.3.6".into(),
            kind,
            max_buffer_bytes: 0,
            max_binding_bytes: 0,
            workgroup_bytes: 0,
            invocations: 0,
            storage_buffers: 0,
            timestamps: false,
            f16: false,
        }
    }

    #[test]
    fn software_is_taken_only_by_name() {
        let software = summary("llvmpipe (LLVM 15.0.6, 256 bits)", AdapterKind::Software);
        assert!(!Selector::Gpu.fits(&software));
        for name in ["lavapipe", "LLVMpipe", " llvm "] {
            assert!(Selector::named(name).fits(&software), "{name}");
        }
        for name in ["", "mesa", "gpu", "vulkan"] {
            assert!(!Selector::named(name).fits(&software), "{name}");
        }
        let gpu = summary("AMD Radeon RX 7600", AdapterKind::Discrete);
        assert!(Selector::Gpu.fits(&gpu) && Selector::named("radeon").fits(&gpu));
        assert!(!Selector::named("lavapipe").fits(&gpu));
    }

    #[test]
    fn a_missing_adapter_says_what_to_do() {
        let there = [summary("llvmpipe", AdapterKind::Software)];
        let message = no_adapter(&Selector::named("radeon"), &there).to_string();
        for part in
            ["radeon", "llvmpipe (vulkan, Mesa 22.3.6)", "apt install mesa-vulkan-drivers", "--device cpu"]
        {
            assert!(message.contains(part), "{message}");
        }
        assert!(no_adapter(&Selector::Gpu, &[]).to_string().contains("none at all"));
    }

    #[test]
    fn a_lost_device_outranks_other_faults() {
        let health = Health::default();
        health.latch(Fault::Other("first".into()));
        health.latch(Fault::Other("second".into()));
        assert!(matches!(&*lock(&health.0), Some(Fault::Other(m)) if m == "first"));
        health.latch(Fault::Lost("gone".into()));
        health.latch(Fault::OutOfMemory("later".into()));
        assert!(matches!(&*lock(&health.0), Some(Fault::Lost(m)) if m == "gone"));
    }
}
