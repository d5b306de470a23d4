//! `veilgrad devices`: what there is to compute on, and what `--device` takes.

use clap::Args;
use serde_json::json;

use super::{JsonArg, output};
use crate::cpu::CpuEngine;
use crate::error::Result;
use crate::gpu::{AdapterKind, AdapterSummary, GpuEngine, Selector, adapters};
use crate::record::Engine;

/// List adapters and engines; say what --device auto takes and why.
#[derive(Debug, Args)]
pub struct Devices {
    #[command(flatten)]
    json: JsonArg,
}

impl Devices {
    pub fn run(self) -> Result<()> {
        let found = adapters();
        let (auto, why) = automatic(&found);
        let cpu = CpuEngine::<f32>::new().describe();
        if self.json.json {
            let list: Vec<_> = found
                .iter()
                .map(|a| {
                    json!({
                        "name": a.name, "backend": a.backend, "driver": a.driver, "kind": format!("{:?}", a.kind).to_lowercase(),
                        "max_buffer_bytes": a.max_buffer_bytes, "max_binding_bytes": a.max_binding_bytes,
                        "workgroup_bytes": a.workgroup_bytes, "invocations": a.invocations, "timestamps": a.timestamps, "f16": a.f16,
                    })
                })
                .collect();
            output::json(&json!({ "adapters": list, "cpu": cpu, "auto": auto, "why": why }));
            return Ok(());
        }
        println!("{cpu}");
        for a in &found {
            println!(
                "{a}: buffers to {}, bindings to {}",
                output::bytes(a.max_buffer_bytes),
                output::bytes(a.max_binding_bytes)
            );
        }
        println!("--device auto takes {auto}: {why}");
        Ok(())
    }
}

/// What `auto` takes, and why.
fn automatic(found: &[AdapterSummary]) -> (String, &'static str) {
    match found.iter().find(|a| a.kind != AdapterKind::Software) {
        Some(gpu) => (gpu.name.clone(), "it is a GPU"),
        None if found.is_empty() => ("cpu".into(), "no Vulkan, Metal or DX12 adapter was found"),
        None => (
            "cpu".into(),
            "there are only software adapters, which are slower than the cpu engine; name one to use it",
        ),
    }
}

/// Opens what `--device` names.
///
/// # Errors
/// [`crate::Error::NoAdapter`] saying what there is; the driver's.
pub fn open(name: &str) -> Result<Box<dyn Engine>> {
    match name {
        "cpu" => Ok(Box::new(CpuEngine::<f32>::new())),
        "gpu" => Ok(Box::new(GpuEngine::open(&Selector::Gpu)?)),
        "auto" if adapters().iter().any(|a| a.kind != AdapterKind::Software) => {
            Ok(Box::new(GpuEngine::open(&Selector::Gpu)?))
        }
        "auto" => Ok(Box::new(CpuEngine::<f32>::new())),
        named => Ok(Box::new(GpuEngine::open(&Selector::named(named))?)),
    }
}
