//! The memory of one layout on a device, and the programs that run on it.

use std::collections::VecDeque;
use std::sync::Arc;

use wgpu::{BufferUsages, CommandEncoder, SubmissionIndex};

use super::Options;
use super::device::Device;
use super::pipelines::Pipeline;
use super::profile::Timer;
use super::transfer::buffer;
use super::verify::Watch;
use crate::error::{Error, Result};
use crate::kernel::Value;
use crate::record::{
    BufferInfo, Command, DType, Dispatch, Layout, Program, Recording, Session, Slice, check_transfer,
};

/// Uniform blocks lie at multiples of this many bytes, which every device can bind.
pub(super) const BLOCK: u64 = 256;

pub(super) struct Held {
    pub info: BufferInfo,
    pub raw: wgpu::Buffer,
}

/// A dispatch with everything it needs.
pub(super) struct Ready {
    pub dispatch: Dispatch,
    pub pipeline: Arc<Pipeline>,
    group: wgpu::BindGroup,
}

enum Step {
    Dispatch(Ready),
    Copy(Slice, Slice),
    Clear(Slice),
}

pub(super) struct GpuSession {
    pub(super) device: Arc<Device>,
    pub(super) options: Options,
    pub(super) buffers: Vec<Held>,
    programs: Vec<Arc<Vec<Step>>>,
    /// Reused for every download; a download that fails leaves none behind.
    pub(super) staging: Option<wgpu::Buffer>,
    /// For copies inside one buffer, which devices do not make directly.
    detour: Option<wgpu::Buffer>,
    pub(super) in_flight: VecDeque<SubmissionIndex>,
    pub(super) pending_bytes: usize,
    pub(super) pending_writes: usize,
    timer: Option<Timer>,
    watch: Watch,
}

/// Offset and size in bytes.
pub(super) fn bytes(slice: Slice) -> (u64, u64) {
    (slice.offset as u64 * 4, slice.len as u64 * 4)
}

impl GpuSession {
    pub fn new(device: Arc<Device>, options: Options, layout: &Layout) -> Result<Self> {
        let mut buffers = Vec::with_capacity(layout.buffers().len());
        for info in layout.buffers() {
            let size = (info.len.max(1) as u64 * 4).next_multiple_of(BLOCK);
            if size > device.max_buffer_bytes() {
                return Err(Error::Limit {
                    what: format!("buffer {} in bytes (max_buffer_size)", info.name),
                    needed: size,
                    allowed: device.max_buffer_bytes(),
                });
            }
            let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
            let raw = buffer(&device, &info.name, size, usage)?;
            buffers.push(Held { info: info.clone(), raw });
        }
        let timer =
            options.profiling.then(|| Timer::new(&device, options.dispatches_per_submit)).transpose()?;
        let watch = Watch::new(options.verify.clone());
        Ok(GpuSession {
            device,
            options,
            buffers,
            programs: Vec::new(),
            staging: None,
            detour: None,
            in_flight: VecDeque::new(),
            pending_bytes: 0,
            pending_writes: 0,
            timer,
            watch,
        })
    }

    pub(super) fn held(&self, slice: Slice) -> Result<&Held> {
        let Some(held) = self.buffers.get(slice.buffer) else {
            return Err(Error::kernel("session", format!("{slice:?} is not in this layout")));
        };
        let end = slice.offset.checked_add(slice.len);
        if end.is_none_or(|end| end > held.info.len) || slice.dtype != held.info.dtype {
            let BufferInfo { name, len, dtype } = &held.info;
            return Err(Error::kernel(
                "session",
                format!("{slice:?} leaves {name}, which has {len} {dtype:?}"),
            ));
        }
        Ok(held)
    }

    /// Checks a dispatch against this device and layout, and builds its pipeline.
    fn pipeline(&self, dispatch: &Dispatch) -> Result<Arc<Pipeline>> {
        let name = || format!("{} ({})", dispatch.kernel, dispatch.label);
        for (binding, slice) in &dispatch.bindings {
            let held = self.held(*slice)?;
            let (needed, allowed) = (slice.len as u64 * 4, self.device.max_binding_bytes());
            if needed > allowed {
                return Err(Error::Limit {
                    what: format!(
                        "kernel {}, binding {binding} to buffer {} in bytes (max_storage_buffer_binding_size)",
                        name(),
                        held.info.name
                    ),
                    needed,
                    allowed,
                });
            }
        }
        let allowed = self.device.limits.max_compute_workgroups_per_dimension;
        let needed = dispatch.groups.into_iter().max().unwrap_or(0);
        if needed > allowed {
            return Err(Error::Limit {
                what: format!("kernel {}, workgroups along one dimension", name()),
                needed: needed as u64,
                allowed: allowed as u64,
            });
        }
        self.device.pipeline(dispatch, self.options.checked_shaders)
    }

    /// All param blocks of a recording in one uniform buffer, with the offset of each dispatch that has one.
    fn params(&self, pipelines: &[(&Dispatch, Arc<Pipeline>)]) -> Result<(Option<wgpu::Buffer>, Vec<u64>)> {
        let mut data = Vec::new();
        let mut offsets = Vec::with_capacity(pipelines.len());
        for (dispatch, pipeline) in pipelines {
            offsets.push(data.len() as u64);
            pack(dispatch, pipeline, &mut data);
        }
        if data.is_empty() {
            return Ok((None, offsets));
        }
        let size = data.len() as u64;
        if size > self.device.max_buffer_bytes() {
            return Err(Error::Limit {
                what: "params of one recording in bytes (max_buffer_size)".into(),
                needed: size,
                allowed: self.device.max_buffer_bytes(),
            });
        }
        let raw = buffer(&self.device, "params", size, BufferUsages::UNIFORM | BufferUsages::COPY_DST)?;
        self.device.scoped("params", || self.device.queue.write_buffer(&raw, 0, &data))?;
        Ok((Some(raw), offsets))
    }

    fn group(
        &self,
        dispatch: &Dispatch,
        pipeline: &Pipeline,
        params: Option<(&wgpu::Buffer, u64)>,
    ) -> wgpu::BindGroup {
        let binding = |buffer, offset, size| {
            wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset,
                size: wgpu::BufferSize::new(size),
            })
        };
        let interface = &pipeline.interface;
        let mut entries = Vec::new();
        if let Some((buffer, offset)) = params.filter(|_| interface.params_bytes > 0) {
            let resource = binding(buffer, offset, interface.params_bytes as u64);
            entries.push(wgpu::BindGroupEntry { binding: 0, resource });
        }
        for slot in &interface.slots {
            // Recording refused a dispatch without this binding.
            let Some((_, slice)) = dispatch.bindings.iter().find(|(n, _)| *n == slot.name) else { continue };
            let (offset, size) = bytes(*slice);
            // A vector that a short tensor only begins must be bound whole. Tensors start at multiples of 256
            // bytes, so what is added belongs to nobody else.
            let resource = binding(&self.buffers[slice.buffer].raw, offset, size.next_multiple_of(16));
            entries.push(wgpu::BindGroupEntry { binding: slot.binding, resource });
        }
        self.device.raw.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&dispatch.label),
            layout: &pipeline.layout,
            entries: &entries,
        })
    }

    /// Runs steps in one submission.
    fn submit(&mut self, steps: &[Step]) -> Result<()> {
        let device = self.device.clone();
        let detour = self.detour.clone();
        let timer = self.timer.as_ref();
        let mut timed = Vec::new();
        let what = match steps.first() {
            Some(Step::Dispatch(d)) => format!("running from {} ({})", d.dispatch.kernel, d.dispatch.label),
            _ => "running".to_owned(),
        };
        let index = device.scoped(what, || {
            let mut encoder = device.raw.create_command_encoder(&Default::default());
            let mut rest = steps;
            while let Some((step, after)) = rest.split_first() {
                rest = match step {
                    Step::Dispatch(ready) if timer.is_some() => {
                        let writes = timer.map(|t| t.writes(timed.len()));
                        timed.push((ready.dispatch.kernel, ready.dispatch.label.as_str()));
                        pass(&mut encoder, std::slice::from_ref(step), writes);
                        after
                    }
                    Step::Dispatch(_) => {
                        let n = rest.iter().take_while(|s| matches!(s, Step::Dispatch(_))).count();
                        pass(&mut encoder, &rest[..n], None);
                        &rest[n..]
                    }
                    Step::Copy(from, to) => {
                        self.copy(&mut encoder, *from, *to, detour.as_ref());
                        after
                    }
                    Step::Clear(slice) => {
                        let (offset, size) = bytes(*slice);
                        encoder.clear_buffer(&self.buffers[slice.buffer].raw, offset, Some(size));
                        after
                    }
                };
            }
            if let Some(timer) = timer {
                timer.resolve(&mut encoder, timed.len());
            }
            device.queue.submit([encoder.finish()])
        })?;
        self.sent(index.clone())?;
        match &self.timer {
            Some(timer) => timer.collect(&device, &timed, index, self.options.timeout),
            None => Ok(()),
        }
    }

    fn copy(&self, encoder: &mut CommandEncoder, from: Slice, to: Slice, detour: Option<&wgpu::Buffer>) {
        let (source, target) = (&self.buffers[from.buffer].raw, &self.buffers[to.buffer].raw);
        let ((from_at, size), (to_at, _)) = (bytes(from), bytes(to));
        match detour.filter(|_| from.buffer == to.buffer) {
            Some(between) => {
                encoder.copy_buffer_to_buffer(source, from_at, between, 0, size);
                encoder.copy_buffer_to_buffer(between, 0, target, to_at, size);
            }
            None => encoder.copy_buffer_to_buffer(source, from_at, target, to_at, size),
        }
    }

    /// Runs one dispatch and compares it with its twin.
    fn run_watched(&mut self, step: &Step, ready: &Ready) -> Result<()> {
        let mut before = Vec::with_capacity(ready.dispatch.bindings.len());
        for (name, slice) in &ready.dispatch.bindings {
            before.push((*name, self.words(*slice)?));
        }
        self.submit(std::slice::from_ref(step))?;
        let mut after = Vec::new();
        for slot in ready.pipeline.interface.slots.iter().filter(|s| s.writes) {
            if let Some((name, slice)) = ready.dispatch.bindings.iter().find(|(n, _)| *n == slot.name) {
                after.push((*name, self.words(*slice)?));
            }
        }
        super::verify::compare(&ready.dispatch, before, &after, &self.options.tolerance)
    }

    fn words(&mut self, slice: Slice) -> Result<super::verify::Words> {
        Ok(match slice.dtype {
            DType::F32 => super::verify::Words::Float(self.download(slice)?),
            DType::U32 => super::verify::Words::Uint(self.download(slice)?),
        })
    }
}

/// Appends the uniform block of a dispatch, padded to a block; nothing if the kernel has no params.
fn pack(dispatch: &Dispatch, pipeline: &Pipeline, data: &mut Vec<u8>) {
    let start = data.len();
    let size = (pipeline.interface.params_bytes as u64).next_multiple_of(BLOCK) as usize;
    data.resize(start + size, 0);
    for field in &pipeline.interface.params {
        let word = match dispatch.params.get(field.name.as_str()) {
            Some(Value::U32(x)) => x.to_ne_bytes(),
            Some(Value::F32(x)) => x.to_ne_bytes(),
            None => unreachable!("recording refused a dispatch without this param"),
        };
        let at = start + field.offset as usize;
        data[at..at + 4].copy_from_slice(&word);
    }
}

fn pass(encoder: &mut CommandEncoder, steps: &[Step], writes: Option<wgpu::ComputePassTimestampWrites<'_>>) {
    let mut pass =
        encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes: writes });
    for step in steps {
        if let Step::Dispatch(ready) = step {
            let [x, y, z] = ready.dispatch.groups;
            pass.set_pipeline(&ready.pipeline.raw);
            pass.set_bind_group(0, &ready.group, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
    }
}

impl Session for GpuSession {
    fn prepare(&mut self, recording: &Recording) -> Result<Program> {
        let mut pipelines = Vec::new();
        let mut detour = 0;
        for command in recording.commands() {
            match command {
                Command::Dispatch(dispatch) => pipelines.push((dispatch, self.pipeline(dispatch)?)),
                Command::Copy { from, to } => {
                    self.held(*from)?;
                    self.held(*to)?;
                    if from.buffer == to.buffer {
                        detour = detour.max(bytes(*from).1);
                    }
                }
                Command::Clear(slice) => {
                    self.held(*slice)?;
                }
            }
        }
        if detour > self.detour.as_ref().map_or(0, wgpu::Buffer::size) {
            let usage = BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
            self.detour = Some(buffer(&self.device, "copy inside a buffer", detour, usage)?);
        }
        let (params, offsets) = self.params(&pipelines)?;
        let mut ready = Vec::with_capacity(pipelines.len());
        for ((dispatch, pipeline), offset) in pipelines.into_iter().zip(offsets) {
            let group = self
                .device
                .scoped(format_args!("bindings of {} ({})", dispatch.kernel, dispatch.label), || {
                    self.group(dispatch, &pipeline, params.as_ref().map(|p| (p, offset)))
                })?;
            ready.push(Ready { dispatch: dispatch.clone(), pipeline, group });
        }
        let mut ready = ready.into_iter();
        let steps = recording.commands().iter().filter_map(|command| match command {
            Command::Dispatch(_) => ready.next().map(Step::Dispatch),
            Command::Copy { from, to } => Some(Step::Copy(*from, *to)),
            Command::Clear(slice) => Some(Step::Clear(*slice)),
        });
        self.programs.push(Arc::new(steps.collect()));
        Ok(Program(self.programs.len() - 1))
    }

    fn run(&mut self, program: Program) -> Result<()> {
        let Some(steps) = self.programs.get(program.0).cloned() else {
            return Err(Error::kernel("session", format!("{program:?} was not prepared in this session")));
        };
        self.device.check()?;
        let mut rest = &steps[..];
        while !rest.is_empty() {
            let n = match &rest[0] {
                Step::Dispatch(ready) if self.watch.wants(ready.dispatch.kernel) => {
                    self.run_watched(&rest[0], ready)?;
                    1
                }
                first => {
                    let n = if self.watch.on() && !matches!(first, Step::Dispatch(_)) {
                        1
                    } else {
                        rest.len().min(self.options.dispatches_per_submit)
                    };
                    self.submit(&rest[..n])?;
                    n
                }
            };
            rest = &rest[n..];
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        if self.pending_writes > 0 {
            self.flush()?;
        }
        self.in_flight.clear();
        self.device.poll(None, Some(self.options.timeout))
    }

    fn write(&mut self, to: Slice, data: &[f32]) -> Result<()> {
        check_transfer(to, DType::F32, data.len())?;
        self.upload(to, data)
    }

    fn write_u32(&mut self, to: Slice, data: &[u32]) -> Result<()> {
        check_transfer(to, DType::U32, data.len())?;
        self.upload(to, data)
    }

    fn read(&mut self, from: Slice) -> Result<Vec<f32>> {
        check_transfer(from, DType::F32, from.len)?;
        self.download(from)
    }

    fn read_u32(&mut self, from: Slice) -> Result<Vec<u32>> {
        check_transfer(from, DType::U32, from.len)?;
        self.download(from)
    }
}
