//! Pipelines, built when first needed and kept for all sessions of a device.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::device::{Device, lock};
use crate::error::{Error, Result};
use crate::record::Dispatch;
use crate::wgsl::{self, Interface, Linked};

/// A kernel ready to run.
#[derive(Debug)]
pub(super) struct Pipeline {
    pub raw: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
    pub interface: Arc<Interface>,
}

type ModuleKey = (&'static str, Vec<(&'static str, u32)>, bool);

/// The pipelines of a device by module, constants, checks and entry point.
#[derive(Debug, Default)]
pub(super) struct Pipelines {
    modules: BTreeMap<ModuleKey, wgpu::ShaderModule>,
    built: BTreeMap<(ModuleKey, &'static str), Arc<Pipeline>>,
}

impl Device {
    /// The pipeline of a dispatch.
    ///
    /// # Errors
    /// [`Error::Shader`], [`Error::Limit`], [`Error::Device`].
    pub fn pipeline(&self, dispatch: &Dispatch, checked: bool) -> Result<Arc<Pipeline>> {
        let kernel = dispatch.kernel;
        let key: ModuleKey = (kernel.module, dispatch.spec.clone(), checked);
        let mut pipelines = lock(&self.pipelines);
        if let Some(found) = pipelines.built.get(&(key.clone(), kernel.entry)) {
            return Ok(found.clone());
        }
        let interface = wgsl::interface(kernel.module, kernel.entry, &dispatch.spec)?;
        fits(&kernel.to_string(), &interface, &self.limits)?;
        let module = match pipelines.modules.get(&key) {
            Some(found) => found.clone(),
            None => {
                let linked = wgsl::linked(kernel.module, &dispatch.spec)?;
                let module = self.module(kernel.module, &linked, checked)?;
                pipelines.modules.insert(key.clone(), module.clone());
                module
            }
        };
        let pipeline = self.scoped(kernel, || self.build(dispatch, &module, &interface))?;
        let pipeline = Arc::new(pipeline);
        pipelines.built.insert((key, kernel.entry), pipeline.clone());
        Ok(pipeline)
    }

    fn module(&self, name: &str, linked: &Linked, checked: bool) -> Result<wgpu::ShaderModule> {
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(name),
            source: wgpu::ShaderSource::Wgsl(linked.text.as_str().into()),
        };
        let checks = if checked {
            wgpu::ShaderRuntimeChecks::checked()
        } else {
            wgpu::ShaderRuntimeChecks::unchecked()
        };
        let mut module = None;
        let made = self.scoped(name, || {
            // SAFETY: only embedded shaders get here. A recording binds slices inside their buffers, loops end, and
            // every index is bounded by the params that the op derived from the same shapes as the slices: the
            // suite runs each kernel with canaries around its tensors, and house rules forbid reads out of bounds.
            module = Some(unsafe { self.raw.create_shader_module_trusted(descriptor, checks) });
        });
        match (made, module) {
            (Ok(()), Some(module)) => Ok(module),
            (Err(error @ (Error::DeviceLost(_) | Error::OutOfMemory { .. })), _) | (Err(error), None) => {
                Err(error)
            }
            (Err(error), Some(module)) => {
                // What naga accepts with all capabilities may still be beyond this device: say where.
                let info = pollster::block_on(module.get_compilation_info());
                let first =
                    info.messages.iter().find_map(|m| m.location.map(|l| (l.line_number, &m.message)));
                Err(first.map_or(error, |(line, message)| linked.error(line as usize, message.as_str())))
            }
            (Ok(()), None) => unreachable!("the closure ran"),
        }
    }

    fn build(
        &self,
        dispatch: &Dispatch,
        module: &wgpu::ShaderModule,
        interface: &Arc<Interface>,
    ) -> Pipeline {
        let label = dispatch.kernel.to_string();
        let entry = |binding, ty, bytes: u32| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty,
                has_dynamic_offset: false,
                min_binding_size: wgpu::BufferSize::new(bytes as u64),
            },
            count: None,
        };
        let mut entries = Vec::new();
        if interface.params_bytes > 0 {
            entries.push(entry(0, wgpu::BufferBindingType::Uniform, interface.params_bytes));
        }
        // Slices of one buffer may be bound side by side, which is allowed only if all may be written.
        let storage = wgpu::BufferBindingType::Storage { read_only: false };
        entries.extend(interface.slots.iter().map(|s| entry(s.binding, storage, 0)));
        let layout = self.raw.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(&label),
            entries: &entries,
        });
        let pipeline_layout = self.raw.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(&label),
            bind_group_layouts: &[Some(&layout)],
            ..Default::default()
        });
        let raw = self.raw.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&label),
            layout: Some(&pipeline_layout),
            module,
            entry_point: Some(dispatch.kernel.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                // Zeroing is slow on Metal and DX12, and would hide a kernel that forgets to initialise.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        Pipeline { raw, layout, interface: interface.clone() }
    }
}

/// Compares a kernel with the limits of a device. wgpu does not look at workgroup memory, and a driver that is
/// asked for too much may lose the device without a word.
fn fits(kernel: &str, interface: &Interface, limits: &wgpu::Limits) -> Result<()> {
    let size = interface.workgroup_size;
    let needs = [
        ("workgroup memory in bytes", interface.workgroup_bytes, limits.max_compute_workgroup_storage_size),
        ("storage buffers", interface.slots.len() as u32, limits.max_storage_buffers_per_shader_stage),
        (
            "invocations per workgroup",
            size.iter().fold(1, |n, s| n.saturating_mul(*s)),
            limits.max_compute_invocations_per_workgroup,
        ),
        ("invocations per workgroup along x", size[0], limits.max_compute_workgroup_size_x),
        ("invocations per workgroup along y", size[1], limits.max_compute_workgroup_size_y),
        ("invocations per workgroup along z", size[2], limits.max_compute_workgroup_size_z),
        ("bytes of params", interface.params_bytes, limits.max_uniform_buffer_binding_size as u32),
    ];
    for (what, needed, allowed) in needs {
        if needed > allowed {
            return Err(Error::Limit {
                what: format!("kernel {kernel}, {what},"),
                needed: needed as u64,
                allowed: allowed as u64,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::DType;
    use crate::wgsl::Slot;

    fn interface() -> Interface {
        Interface {
            slots: Vec::new(),
            params: Vec::new(),
            params_bytes: 16,
            workgroup_size: [64, 1, 1],
            workgroup_bytes: 16384,
        }
    }

    #[test]
    fn each_limit_is_compared() {
        let limits = wgpu::Limits::defaults();
        assert!(fits("k", &interface(), &limits).is_ok());
        let slot = |binding| Slot { name: "x".into(), binding, dtype: DType::F32, reads: true, writes: true };
        let too_much = [
            ("workgroup memory", Interface { workgroup_bytes: 16400, ..interface() }),
            ("storage buffers", Interface { slots: (1..=9).map(slot).collect(), ..interface() }),
            ("invocations", Interface { workgroup_size: [16, 17, 1], ..interface() }),
            ("along z", Interface { workgroup_size: [1, 1, 65], ..interface() }),
            ("params", Interface { params_bytes: 65_552, ..interface() }),
        ];
        for (what, interface) in too_much {
            match fits("k", &interface, &limits) {
                Err(Error::Limit { what: named, needed, allowed }) => {
                    assert!(named.contains(what) && needed > allowed, "{named}");
                }
                other => panic!("{what}: {other:?}"),
            }
        }
    }
}
